// The map as a table in words and numbers: a row for each rack. It is the sign beside colour where cells are too small for marks.

import {element} from './dom.js';
import {FIRST_GANG, FREE, OTHERS, SHARED, UNHEALTHY, UNKNOWN, count, gangName} from './words.js';

const MAX_ROWS = 1000;
const NAMED = 4;
const HEAD = ['GPUs', 'Free', 'Of gangs', 'Reserved', 'Other pods', 'Shared', 'Index not known', 'Unhealthy', 'Nodes that take no pods', 'Gangs'];

// What the GPUs of a group of nodes are, as the row of the table.
export function counted(store, group) {
  const {layout, cells, closed} = store;
  const states = new Map(), gangs = new Map();
  let gpus = 0, shut = 0, free = 0;
  for (let at = group.first; at < group.end; at++) {
    const node = layout.nodes[at];
    shut += closed.has(at);
    gpus += node.gpus;
    for (let cell = node.cell; cell < node.cell + node.gpus; cell++) {
      const number = cells[cell];
      free += number === FREE && !closed.has(at);
      const state = number < FIRST_GANG ? number : FIRST_GANG + (number & 1);
      states.set(state, (states.get(state) ?? 0) + 1);
      if (number >= FIRST_GANG) gangs.set(number & ~1, (gangs.get(number & ~1) ?? 0) + 1);
    }
  }
  const of = state => states.get(state) ?? 0;
  const names = [...gangs].sort((a, b) => b[1] - a[1]).slice(0, NAMED).map(([number, taken]) => {
    const key = store.owners.get(number);
    return `${key === undefined ? 'a gang that has gone' : gangName(store.rows.get(key), key)}: ${taken}`;
  });
  const more = gangs.size > NAMED ? [`${count(gangs.size - NAMED, 'more gang')}`] : [];
  return [gpus, free, of(FIRST_GANG), of(FIRST_GANG + 1), of(OTHERS), of(SHARED), of(UNKNOWN), of(UNHEALTHY), shut, [...names, ...more].join(', ')];
}

export class Table {
  constructor(root, store) {
    Object.assign(this, {root, store});
    root.addEventListener('toggle', () => this.render());
  }

  // Nothing is counted while the table is folded.
  render() {
    const body = this.root.querySelector('div');
    if (!this.root.open || !this.store.layout) return body.replaceChildren();
    const {groups, scopes} = this.store.layout;
    const rows = groups.slice(0, MAX_ROWS).map(group => element('tr', {children: [
      element('th', {scope: 'row', text: group.path.filter(Boolean).join(' / ') || group.label}),
      ...counted(this.store, group).map(value => element('td', {text: typeof value === 'number' ? value.toLocaleString('en') : value})),
    ]}));
    const head = [scopes.at(-1) ?? 'Nodes', ...HEAD].map(text => element('th', {scope: 'col', text}));
    const parts = [element('table', {'aria-label': 'The map as a table', children: [
      element('thead', {children: [element('tr', {children: head})]}), element('tbody', {children: rows}),
    ]})];
    if (groups.length > MAX_ROWS) parts.push(element('p', {text: `and ${count(groups.length - MAX_ROWS, 'more row')}`}));
    const {scrollTop} = body;
    body.replaceChildren(...parts);
    body.scrollTop = scrollTop;
  }
}
