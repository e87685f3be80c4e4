// The list of gangs: those that wait in the order of the planner, those that start, those that run.

import {gangColour} from './colours.js';
import {element} from './dom.js';
import {age, count, tag} from './words.js';

const AT_ONCE = 60;
const STAGES = [
  {title: 'Waiting for a place', none: 'No gang waits for a place.', always: true},
  {title: 'Not complete', none: ''},
  {title: 'Starting', none: ''},
  {title: 'Running', none: ''},
];

export class List {
  constructor(root, store, {onOpen}) {
    Object.assign(this, {root, store, onOpen});
    this.filter = '';
    this.shown = STAGES.map(() => AT_ONCE);
    this.selected = '';
    this.colours = {dark: true};
  }

  render() {
    const wanted = this.filter.trim().toLowerCase();
    const rows = this.store.ordered();
    const fits = row => !wanted || `${row.namespace}/${row.name} ${row.phase} ${row.queue}`.toLowerCase().includes(wanted);
    const focused = document.activeElement?.closest?.('.gang')?.dataset.key;
    const sections = STAGES.map((stage, at) => this.section(stage, at, rows.filter(row => row.order[0] === at && fits(row)), wanted));
    const left = this.store.totals?.gangs_left_out ?? 0;
    if (left) sections.push(element('p', {class: 'none', text: `${count(left, 'more gang')} not listed: the list shows 1,000.`}));
    this.root.replaceChildren(...sections.filter(Boolean));
    if (focused !== undefined) [...this.root.querySelectorAll('.gang')].find(each => each.dataset.key === focused)?.focus();
  }

  section(stage, at, rows, wanted) {
    if (!rows.length && (!stage.always || wanted)) {
      return stage.always ? element('section', {class: 'stage', children: [element('p', {class: 'none', text: 'No waiting gang has this name.'})]}) : null;
    }
    const items = rows.slice(0, this.shown[at]).map(row => element('li', {children: [this.row(row)]}));
    const rest = rows.length - items.length;
    const more = rest > 0 ? element('button', {
      class: 'quiet', type: 'button', text: `Show ${Math.min(rest, AT_ONCE)} more of ${rest.toLocaleString('en')}`,
      on: {click: () => { this.shown[at] += AT_ONCE; this.render(); }},
    }) : null;
    const id = `stage-${at}`;
    return element('section', {class: 'stage', 'aria-labelledby': id, children: [
      element('h2', {id, children: [element('span', {text: stage.title}), element('span', {text: rows.length ? rows.length.toLocaleString('en') : ''})]}),
      rows.length ? element('ul', {children: items}) : element('p', {class: 'none', text: stage.none}),
      more,
    ]});
  }

  row(row) {
    const number = this.store.numbers.get(row.key);
    const place = row.position ? `, position ${row.position}` : '';
    const members = `${row.bound ? `${row.bound} bound, ` : ''}${row.present} of ${row.needed} here`;
    return element('button', {
      class: 'gang', type: 'button', 'data-key': row.key, 'aria-current': row.key === this.selected ? 'true' : null,
      'aria-label': `${row.namespace}/${row.name}, ${row.phase}${place}, ${members}`,
      on: {click: () => this.onOpen(row.key)},
      children: [
        chip(number, row.position, this.colours.dark),
        element('span', {class: 'name', title: `${row.namespace}/${row.name}`, children: [element('span', {class: 'space', text: `${row.namespace}/`}), row.name]}),
        element('span', {class: 'age', 'data-created': row.created, text: row.created ? age(this.store.now() - row.created) : ''}),
        element('span', {class: 'line', text: [row.phase, members, row.priority ? `priority ${row.priority}` : ''].filter(Boolean).join(' · ')}),
        row.reason && row.order[0] < 2 ? element('span', {class: 'why', text: row.reason}) : null,
      ],
    });
  }

  tick() {
    for (const each of this.root.querySelectorAll('.age')) {
      const created = +each.dataset.created;
      if (created) each.textContent = age(this.store.now() - created);
    }
  }
}

// The letters of a gang that has GPUs, or its position in the line.
export function chip(number, position, dark) {
  const made = element('span', {class: number === undefined ? 'chip' : 'chip owned', 'aria-hidden': 'true', text: number === undefined ? (position || '·') : tag(number)});
  if (number !== undefined) made.style.backgroundColor = gangColour(number, dark);
  return made;
}
