// The same map for keyboard and screen reader: a grid of real elements for the nodes around the focused GPU.
// Its cells lie over those of the canvas, so that the focus is seen where it is.

import {element} from './dom.js';
import {gpuText} from './words.js';

const ROWS = 24;   // nodes that have elements at once

export class Grid {
  constructor(root, store, painter, {onFocus, onSelect, nameOf}) {
    Object.assign(this, {root, store, painter, onFocus, onSelect, nameOf});
    this.node = 0;
    this.gpu = 0;
    root.addEventListener('keydown', event => this.key(event));
    root.addEventListener('focusin', event => this.focused(event.target));
  }

  // Build the elements again: the nodes around the focused one, or those in view.
  render() {
    const {layout} = this.store;
    if (!layout?.nodes.length || !this.painter.geometry) return this.root.replaceChildren();
    const hadFocus = this.root.contains(document.activeElement);
    if (!hadFocus && !this.painter.inView(Math.min(this.node, layout.nodes.length - 1))) this.node = this.painter.firstInView() ?? 0;
    this.node = Math.min(this.node, layout.nodes.length - 1);
    this.gpu = Math.min(this.gpu, layout.nodes[this.node].gpus - 1);
    this.from = Math.max(0, Math.min(this.node - ROWS / 2, layout.nodes.length - ROWS));
    this.to = Math.min(layout.nodes.length, this.from + ROWS);
    this.root.setAttribute('aria-rowcount', layout.nodes.length);
    this.root.setAttribute('aria-colcount', 1 + layout.nodes.reduce((most, node) => Math.max(most, node.gpus), 0));
    const rows = [];
    for (let node = this.from; node < this.to; node++) rows.push(this.row(node));
    this.rendering = true;
    this.root.replaceChildren(...rows);
    this.rendering = false;
    if (hadFocus) this.cell(this.node, this.gpu)?.focus({preventScroll: true});
  }

  row(node) {
    const {layout, cells} = this.store;
    const told = layout.nodes[node];
    const where = told.group.path.filter(Boolean).map((name, at) => `${layout.scopes[at]} ${name}`).join(', ');
    const header = element('div', {role: 'rowheader', 'aria-colindex': 1, text: where ? `${told.name}, ${where}` : told.name});
    const children = [header];
    for (let gpu = 0; gpu < told.gpus; gpu++) {
      const {x, y} = this.painter.geometry.cell(layout, node, gpu);
      const cell = element('div', {
        role: 'gridcell', 'aria-colindex': gpu + 2, tabindex: node === this.node && gpu === this.gpu ? 0 : -1,
        'aria-label': this.text(node, gpu), 'data-node': node, 'data-gpu': gpu,
        'aria-selected': String(this.painter.selected >= 0 && (cells[told.cell + gpu] & ~1) === this.painter.selected),
      });
      Object.assign(cell.style, {left: `${x}px`, top: `${y}px`, width: `${this.painter.geometry.size}px`, height: `${this.painter.geometry.size}px`});
      children.push(cell);
    }
    return element('div', {role: 'row', 'aria-rowindex': node + 1, children});
  }

  text(node, gpu) {
    const told = this.store.layout.nodes[node];
    return `${told.name}, ${gpuText(told, gpu, this.store.cells[told.cell + gpu], this.nameOf, this.store.closed.get(node))}`;
  }

  cell(node, gpu) {
    return this.root.querySelector(`[data-node="${node}"][data-gpu="${gpu}"]`);
  }

  focused(target) {
    if (this.rendering || target.getAttribute('role') !== 'gridcell') return;
    this.move(+target.dataset.node, +target.dataset.gpu);
  }

  move(node, gpu) {
    this.cell(this.node, this.gpu)?.setAttribute('tabindex', '-1');
    this.node = node;
    this.gpu = gpu;
    this.painter.reveal(node, gpu);
    if (node < this.from + 2 && this.from > 0 || node >= this.to - 2 && this.to < this.store.layout.nodes.length || !this.cell(node, gpu)) this.render();
    const cell = this.cell(node, gpu);
    cell?.setAttribute('tabindex', '0');
    if (document.activeElement !== cell) cell?.focus({preventScroll: true});
    this.onFocus(node, gpu);
  }

  key(event) {
    const {layout, cells} = this.store;
    if (!layout?.nodes.length || event.altKey || event.metaKey) return;
    const last = layout.nodes.length - 1;
    const rack = node => layout.nodes[node].group;
    let {node, gpu} = this;
    const end = at => layout.nodes[at].gpus - 1;
    switch (event.key) {
      case 'ArrowRight': gpu = Math.min(end(node), gpu + 1); break;
      case 'ArrowLeft': gpu = Math.max(0, gpu - 1); break;
      case 'ArrowDown': node = Math.min(last, node + 1); break;
      case 'ArrowUp': node = Math.max(0, node - 1); break;
      case 'PageDown': node = Math.min(last, rack(node).end); break;
      case 'PageUp': node = Math.max(0, rack(Math.max(0, rack(node).first - 1)).first); break;
      case 'Home': gpu = 0; if (event.ctrlKey) node = 0; break;
      case 'End': if (event.ctrlKey) node = last; gpu = end(node); break;
      case 'Enter': case ' ': this.onSelect(cells[layout.nodes[node].cell + gpu]); break;
      case 'Escape': this.onSelect(-1); break;
      default: return;
    }
    event.preventDefault();
    gpu = Math.min(gpu, end(node));
    if (node !== this.node || gpu !== this.gpu) this.move(node, gpu);
  }

  // Say anew what these cells are.
  update(cells) {
    if (!this.store.layout || this.to === undefined) return;
    const {nodes} = this.store.layout;
    const first = nodes[this.from]?.cell ?? 0, end = this.to < nodes.length ? nodes[this.to].cell : this.store.cells.length;
    if (!cells.some(cell => cell >= first && cell < end)) return;
    for (const cell of this.root.querySelectorAll('[role="gridcell"]')) {
      const text = this.text(+cell.dataset.node, +cell.dataset.gpu);
      if (cell.getAttribute('aria-label') !== text) cell.setAttribute('aria-label', text);
    }
  }
}
