// Draws the part of the map in view on a canvas. Only cells that change are drawn again, unless the view moves.

import {Sprites, theme} from './colours.js';
import {Geometry, SIZES, fitting} from './geometry.js';
import {nodeOf} from './store.js';
import {FIRST_GANG, FREE, NOT_READY, tag} from './words.js';

const NAME_FONT = '11px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
const TITLE_FONT = '600 11px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
const SMALL_FONT = '10px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
const MAX_NAME = 150;
const LETTERED_FROM = 13;   // from this size on, cells have the letters of their gangs

export class Painter {
  constructor(store, canvas, scroller, spacer) {
    Object.assign(this, {store, canvas, scroller, spacer});
    this.pen = canvas.getContext('2d', {alpha: false});
    this.size = 0;          // 0: as fits
    this.selected = -1;     // number of a gang; the others fade
    this.geometry = null;
    this.onMove = () => {};
    this.onSize = () => {};  // told whether cells are large enough for letters
    this.asked = false;
    this.texts = new Map();
    scroller.addEventListener('scroll', () => { this.soon(); this.onMove(); }, {passive: true});
    new ResizeObserver(() => this.arrange()).observe(scroller);
    this.recolour();
  }

  recolour() {
    this.colours = theme();
    this.sprites = null;
    this.soon();
  }

  zoom(step) {
    const now = SIZES.indexOf(this.geometry?.size ?? SIZES[0]);
    this.size = step ? SIZES[Math.max(0, Math.min(SIZES.length - 1, now + step))] : 0;
    const node = this.firstInView();
    this.arrange();
    if (step && node !== null) this.reveal(node, 0);
  }

  // Compute where everything is, then draw.
  arrange() {
    const {layout} = this.store;
    if (!layout) return;
    const width = this.scroller.clientWidth, height = this.scroller.clientHeight;
    this.pen.font = NAME_FONT;
    let longest = '';
    for (const node of layout.nodes) if (node.name.length > longest.length) longest = node.name;
    const names = Math.min(MAX_NAME, Math.ceil(this.pen.measureText(longest).width * 1.06) + 14);
    this.geometry = new Geometry(layout, this.size || fitting(layout, width, height, names), width, names);
    this.spacer.style.height = `${this.geometry.height}px`;
    const scale = Math.min(3, devicePixelRatio || 1);
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale) || this.scale !== scale) {
      this.scale = scale;
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    this.sprites = null;
    this.onSize(this.geometry.size >= LETTERED_FROM);
    this.draw();
    this.onMove();
  }

  soon() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.draw(); });
  }

  draw() {
    const {pen, geometry, colours} = this;
    if (!geometry) return;
    this.sprites ??= new Sprites(geometry.size, this.scale, colours);
    this.top = this.scroller.scrollTop;
    const height = this.scroller.clientHeight;
    pen.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    pen.fillStyle = colours.ground;
    pen.fillRect(0, 0, this.scroller.clientWidth, height);
    pen.textBaseline = 'middle';
    for (const heading of geometry.headings) {
      if (heading.y + heading.height < this.top || heading.y > this.top + height) continue;
      pen.font = TITLE_FONT; pen.fillStyle = colours.text;
      pen.fillText(heading.text, heading.x, heading.y - this.top + heading.height / 2);
    }
    for (const block of geometry.between(this.top, this.top + height)) this.drawBlock(block);
  }

  drawBlock(block) {
    this.drawTitle(block);
    const {pen, store: {layout}, geometry} = this;
    for (let node = block.first; node < block.end; node++) {
      const count = layout.nodes[node].gpus;
      for (let gpu = 0; gpu < count; gpu++) this.drawCell(node, gpu);
      if (geometry.names) this.drawName(block, node);
      if (this.store.closed.has(node)) this.strike(node);
    }
    if (geometry.size < 6) return;
    for (let node = block.first, from; node < block.end; node = from) {
      const domain = layout.nodes[node].domain;
      for (from = node + 1; from < block.end && layout.nodes[from].domain === domain; from++);
      if (!domain || from - node < 2) continue;
      const x = block.x + geometry.names - 4, y = block.y + geometry.title - this.top;
      pen.strokeStyle = this.colours.soft; pen.lineWidth = 1; pen.beginPath();
      const start = y + (node - block.first) * geometry.rowPitch + 0.5;
      const end = y + (from - block.first) * geometry.rowPitch - (geometry.rowPitch - geometry.size) - 0.5;
      pen.moveTo(x + 2.5, start); pen.lineTo(x + 0.5, start); pen.lineTo(x + 0.5, end); pen.lineTo(x + 2.5, end);
      pen.stroke();
    }
  }

  drawTitle(block) {
    const {pen, geometry, colours} = this;
    const y = block.y - this.top + geometry.title / 2 - 1;
    const more = block.first > block.group.first ? ' …' : '';
    let room = block.width;
    if (geometry.size >= 13 && !more) {
      let free = 0, all = 0;
      for (let node = block.group.first; node < block.group.end; node++) {
        const {cell, gpus} = this.store.layout.nodes[node];
        all += gpus;
        for (let at = cell; at < cell + gpus; at++) free += !this.store.closed.has(node) && this.store.cells[at] === FREE;
      }
      pen.font = NAME_FONT; pen.fillStyle = colours.soft; pen.textAlign = 'right';
      const text = `${free} of ${all} free`;
      pen.fillText(text, block.x + block.width - 2, y);
      pen.textAlign = 'left';
      room -= pen.measureText(text).width + 10;
    }
    pen.font = geometry.size >= 9 ? TITLE_FONT : SMALL_FONT;
    pen.fillStyle = geometry.size >= 9 ? colours.text : colours.soft;
    pen.fillText(this.fit(block.group.label + more, room), block.x, y);
  }

  drawName(block, node) {
    const {pen, geometry, colours} = this;
    const {y} = geometry.cell(this.store.layout, node, 0);
    const shut = this.store.closed.get(node);
    pen.font = NAME_FONT;
    pen.fillStyle = shut ? colours.warn : colours.soft;
    pen.fillText(this.fit(this.store.layout.nodes[node].name, geometry.names - 9, true), block.x, y - this.top + geometry.size / 2 + 0.5);
  }

  drawCell(node, gpu) {
    const {pen, geometry} = this;
    const number = this.store.cells[this.store.layout.nodes[node].cell + gpu];
    const place = geometry.cell(this.store.layout, node, gpu);
    const x = place.x, y = place.y - this.top, size = geometry.size;
    if (y + size < 0 || y > this.scroller.clientHeight) return;
    const faded = this.selected >= 0 && (number & ~1) !== this.selected;
    pen.globalAlpha = faded ? 0.22 : 1;
    pen.drawImage(this.sprites.of(number), x, y, size, size);
    pen.globalAlpha = 1;
    const letters = number >= FIRST_GANG && size >= LETTERED_FROM ? tag(number) : '';
    if (letters && letters.length * 5 <= size) {
      pen.font = `600 ${Math.round(Math.max(size < 18 ? 8 : 10, Math.min(size * 0.42, 1.35 * size / (letters.length + 0.4))))}px ui-monospace, "DejaVu Sans Mono", monospace`;
      pen.textAlign = 'center';
      pen.fillStyle = number & 1 ? this.colours.text : '#10131a';
      pen.globalAlpha = faded ? 0.3 : 0.9;
      pen.fillText(letters, x + size / 2, y + size / 2 + 1);
      pen.globalAlpha = 1; pen.textAlign = 'left';
    }
  }

  // A line through the GPUs of a node that takes no pods: dashed if it is cordoned.
  strike(node) {
    const {pen, geometry, store: {layout}} = this;
    const first = geometry.cell(layout, node, 0), last = geometry.cell(layout, node, layout.nodes[node].gpus - 1);
    const y = first.y - this.top + geometry.size / 2;
    pen.strokeStyle = this.colours.warn; pen.lineWidth = geometry.size >= 9 ? 2 : 1;
    pen.setLineDash(this.store.closed.get(node) >= NOT_READY ? [] : [4, 3]);
    pen.beginPath(); pen.moveTo(first.x - 2, y); pen.lineTo(last.x + geometry.size + 2, y); pen.stroke();
    pen.setLineDash([]);
  }

  // Draw these cells and nodes again, as far as they are in view.
  update({cells, nodes}) {
    if (!this.geometry || this.top !== this.scroller.scrollTop || nodes.length || cells.length > 8192) return this.draw();
    const {layout} = this.store, blocks = new Set();
    const {pen, geometry, colours} = this;
    for (const cell of cells) {
      const node = nodeOf(layout, cell), gpu = cell - layout.nodes[node].cell;
      const {x, y} = geometry.cell(layout, node, gpu);
      pen.fillStyle = colours.ground;
      pen.fillRect(x, y - this.top, geometry.size, geometry.size);
      this.drawCell(node, gpu);
      if (this.store.closed.has(node)) this.strike(node);
      blocks.add(geometry.blocks[geometry.blockOf[layout.nodes[node].group.first]]);
    }
    if (geometry.size < 13) return;
    for (const block of blocks) {
      pen.fillStyle = colours.ground;
      pen.fillRect(block.x, block.y - this.top, block.width, geometry.title - 2);
      this.drawTitle(block);
    }
  }

  fit(text, room, fromEnd = false) {
    const {pen} = this;
    const key = `${pen.font} ${room} ${text}`;
    let found = this.texts.get(key);
    if (found === undefined) {
      const short = text.match(/[^-_./ ]+$/)?.[0] ?? text;
      found = pen.measureText(text).width > room && pen.measureText(short).width <= room ? short : text;
      for (let cut = text.length - 1; cut > 0 && pen.measureText(found).width > room; cut--) {
        found = fromEnd ? `…${text.slice(text.length - cut)}` : `${text.slice(0, cut)}…`;
      }
      if (this.texts.size > 20000) this.texts.clear();
      this.texts.set(key, found);
    }
    return found;
  }

  at(clientX, clientY) {
    if (!this.geometry) return null;
    const box = this.scroller.getBoundingClientRect();
    return this.geometry.at(this.store.layout, clientX - box.left, clientY - box.top + this.scroller.scrollTop);
  }

  firstInView() {
    if (!this.geometry) return null;
    const [block] = this.geometry.between(this.scroller.scrollTop + 1, this.scroller.scrollTop + this.scroller.clientHeight);
    return block ? block.first : null;
  }

  inView(node) {
    const {y} = this.geometry.cell(this.store.layout, node, 0);
    return y >= this.scroller.scrollTop && y + this.geometry.size <= this.scroller.scrollTop + this.scroller.clientHeight;
  }

  reveal(node, gpu) {
    if (this.inView(node)) return;
    const {y} = this.geometry.cell(this.store.layout, node, gpu);
    this.scroller.scrollTop = Math.max(0, y - this.scroller.clientHeight / 3);
  }
}
