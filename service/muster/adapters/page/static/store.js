// What the service has said: the state as a whole, and the changes after it. Nothing here touches the page.

export class Store {
  constructor() {
    this.id = '';
    this.layout = null;
    this.cells = new Uint32Array(0);
    this.closed = new Map();
    this.owners = new Map();   // number of a gang → its key
    this.numbers = new Map();  // the other way round
    this.rows = new Map();     // key → row of the list
    this.totals = null;
    this.offset = 0;           // the service's clock less ours, s
    this.heardAt = 0;
  }

  load(state) {
    this.id = state.id;
    this.layout = unfolded(state.layout);
    this.cells = Uint32Array.from(state.cells);
    this.closed = new Map(Object.entries(state.closed).map(([node, value]) => [+node, value]));
    this.owners = new Map();
    this.numbers = new Map();
    this.name(state.owners);
    this.rows = new Map(state.gangs.map(row => [row.key, row]));
    this.totals = state.totals;
    this.offset = state.now - Date.now() / 1000;
    this.heardAt = Date.now();
  }

  // Take in a change, and return which cells and nodes are to be drawn again.
  apply(id, change) {
    const nodes = [];
    for (const [at, number] of change.cells ?? []) this.cells[at] = number;
    for (const [node, value] of Object.entries(change.closed ?? {})) {
      if (value) this.closed.set(+node, value); else this.closed.delete(+node);
      nodes.push(+node);
    }
    for (const number of change.gone ?? []) {
      this.numbers.delete(this.owners.get(number));
      this.owners.delete(number);
    }
    this.name(change.owners ?? {});
    for (const key of change.left ?? []) this.rows.delete(key);
    for (const row of change.gangs ?? []) this.rows.set(row.key, row);
    if (change.totals) this.totals = change.totals;
    this.id = id;
    this.heardAt = Date.now();
    return {cells: (change.cells ?? []).map(([at]) => at), nodes};
  }

  name(owners) {
    for (const [number, key] of Object.entries(owners)) {
      this.owners.set(+number, key);
      this.numbers.set(key, +number);
    }
  }

  now() { return Date.now() / 1000 + this.offset; }

  // Rows in the order of the list, each with its position in the line, or 0.
  ordered() {
    const rows = [...this.rows.values()].sort((a, b) => compare(a.order, b.order) || (a.key < b.key ? -1 : 1));
    let position = 0;
    return rows.map(row => ({...row, position: row.order[0] === 0 ? ++position : 0}));
  }
}

function compare(a, b) {
  for (let at = 0; at < a.length; at++) if (a[at] !== b[at]) return Number(a[at]) - Number(b[at]);
  return 0;
}

// The layout with a plain list of nodes; groups are ranges of it.
export function unfolded(told) {
  const nodes = [], groups = [];
  let cell = 0;
  for (const [path, boxes] of told.groups) {
    const group = {path, label: path.at(-1) || (told.scopes.length ? `no ${told.scopes.at(-1)}` : 'all nodes'), first: nodes.length};
    for (const [name, gpus, model, islands, domain] of boxes) {
      const letters = told.islands[islands];
      const runs = [...letters].filter((letter, at) => letter !== letters[at - 1]).length;
      nodes.push({
        name, gpus, cell, group, model: told.models[model], islands: letters, domain: told.domains[domain],
        split: runs > 1 && runs === new Set(letters).size && runs < gpus,
      });
      cell += gpus;
    }
    group.end = nodes.length;
    groups.push(group);
  }
  const zoned = told.scopes.length > 1 && new Set(groups.map(group => group.path.slice(0, -1).join('/'))).size > 1;
  return {scopes: told.scopes, groups, nodes, zoned};
}

// The node of a cell, by its place in the order of cells.
export function nodeOf(layout, cell) {
  let low = 0, high = layout.nodes.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (layout.nodes[middle].cell <= cell) low = middle; else high = middle - 1;
  }
  return low;
}
