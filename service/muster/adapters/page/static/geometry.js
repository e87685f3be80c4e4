// Where cells are: blocks of nodes, one for each rack, flow from left to right and wrap. Nothing here touches the page.

export const SIZES = [4, 6, 9, 13, 18, 24, 32, 40];
const FOLD = 32;         // nodes in one block; a longer rack goes on in a block next to it
const NAMED_FROM = 13;   // from this size on, nodes have their names
const MARGIN = 16;

export class Geometry {
  constructor(layout, size, width, nameWidth) {
    this.size = size;
    this.pitch = size + (size >= 13 ? 3 : size >= 9 ? 2 : 1);
    this.rowPitch = this.pitch + (size >= 13 ? 3 : 0);
    this.title = size >= 9 ? 20 : 14;
    this.names = size >= NAMED_FROM ? nameWidth : 0;
    this.islandGap = size >= 13 ? 6 : size >= 6 ? 3 : 1;
    this.blocks = [];
    this.blockOf = new Int32Array(layout.nodes.length);
    this.headings = [];
    this.flow(layout, width);
  }

  // Gaps between NVLink domains of a node: the x of each GPU.
  columns(node) {
    const xs = [];
    let x = 0;
    for (let gpu = 0; gpu < node.gpus; gpu++) {
      if (gpu && node.split && node.islands[gpu] !== node.islands[gpu - 1]) x += this.islandGap;
      xs.push(x);
      x += this.pitch;
    }
    return {xs, width: x};
  }

  flow(layout, width) {
    const known = new Map();
    this.xsOf = node => {
      const key = `${node.gpus} ${node.split ? node.islands : ''}`;
      if (!known.has(key)) known.set(key, this.columns(node));
      return known.get(key);
    };
    let x = MARGIN, y = 8, shelf = 0, wider = null;
    for (const group of layout.groups) {
      const parent = group.path.slice(0, -1).join(' / ');
      if (layout.zoned && parent !== wider) {
        if (shelf) y += shelf + 8;
        this.headings.push({text: parent || `no ${layout.scopes.at(-2)}`, x: MARGIN, y, height: 22});
        y += 22; x = MARGIN; shelf = 0; wider = parent;
      }
      for (let from = group.first; from < group.end; from += FOLD) {
        const to = Math.min(group.end, from + FOLD);
        let cells = 0;
        for (let at = from; at < to; at++) cells = Math.max(cells, this.xsOf(layout.nodes[at]).width);
        const block = {group, first: from, end: to, width: this.names + Math.max(cells, 24), height: this.title + (to - from) * this.rowPitch};
        if (x > MARGIN && x + block.width > width - MARGIN) { x = MARGIN; y += shelf; shelf = 0; }
        block.x = x; block.y = y;
        x += block.width + (this.size >= 9 ? 22 : 10);
        shelf = Math.max(shelf, block.height + (this.size >= 9 ? 14 : 8));
        for (let at = from; at < to; at++) this.blockOf[at] = this.blocks.length;
        this.blocks.push(block);
      }
    }
    this.height = y + shelf + 8;
  }

  cell(layout, node, gpu) {
    const block = this.blocks[this.blockOf[node]];
    return {
      x: block.x + this.names + this.xsOf(layout.nodes[node]).xs[gpu],
      y: block.y + this.title + (node - block.first) * this.rowPitch,
    };
  }

  // The node and GPU at a point, or null.
  at(layout, x, y) {
    for (const block of this.blocks) {
      if (x < block.x || x >= block.x + block.width || y < block.y + this.title || y >= block.y + block.height) continue;
      const node = block.first + Math.floor((y - block.y - this.title) / this.rowPitch);
      if (node >= block.end) return null;
      const gpu = this.xsOf(layout.nodes[node]).xs.findIndex(left => x - block.x - this.names - left >= 0 && x - block.x - this.names - left < this.pitch);
      return gpu < 0 ? {node, gpu: -1} : {node, gpu};
    }
    return null;
  }

  between(top, bottom) {
    return this.blocks.filter(block => block.y + block.height >= top && block.y <= bottom);
  }
}

// The largest size at which the whole map is in view, or the smallest one there is.
export function fitting(layout, width, height, nameWidth) {
  for (const size of [...SIZES].reverse()) {
    if (new Geometry(layout, size, width, nameWidth).height <= height) return size;
  }
  return SIZES[0];
}
