// Joins the parts: asks the service, draws what it says, and says what state the page itself is in.

import {Sprites} from './colours.js';
import {detail} from './detail.js';
import {byId, element} from './dom.js';
import {Grid} from './grid.js';
import {List} from './list.js';
import {Painter} from './painter.js';
import {Store} from './store.js';
import * as service from './stream.js';
import {Table} from './table.js';
import {CLOSED_MARK, FIRST_GANG, FREE, OTHERS, SHARED, UNHEALTHY, UNKNOWN, count, gangName, gpuText} from './words.js';

const BACKOFF_MS = [500, 15000];
const HIDDEN_MS = 60000;   // a hidden page lets its connection go after this
const DETAIL_MS = 5000;
const ALTERNATIVES_MS = 15000;
const PRESS_MS = 5000;   // a press whose end is not told ends after this

const store = new Store();
const nameOf = number => {
  const key = store.owners.get(number);
  return key === undefined ? 'a gang that has gone' : gangName(store.rows.get(key), key);
};
const painter = new Painter(store, byId('canvas'), byId('scroller'), byId('spacer'));
const list = new List(byId('list'), store, {onOpen: open});
const grid = new Grid(byId('grid'), store, painter, {nameOf, onFocus: inspect, onSelect: select});
const table = new Table(byId('table'), store);
const renderTable = later(() => redraw(drawTable), 300);
painter.onSize = lettered => { byId('small').hidden = lettered; };
painter.onMove = later(() => grid.render(), 120);
let opened = '', said = null, others = null, stop = new AbortController(), attempt = 0;
let wake = () => {};
const woken = ms => new Promise(done => { wake = done; if (ms) setTimeout(done, ms); });
let pressed = 0;
const afterPress = new Set();

// --- what is shown ---------------------------------------------------------------------------------

function later(work, ms) {
  let timer = 0;
  return () => { clearTimeout(timer); timer = setTimeout(work, ms); };
}

// A screen reader says a text again whenever it is set.
function say(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

function setState(name, text) {
  document.body.dataset.state = name;
  say('status-text', text);
}

function banner(text) {
  say('banner', text);
  byId('banner').hidden = !text;
}

function totals() {
  const {gpus, free, unhealthy, phases} = store.totals;
  const waiting = ['planning', 'unplaceable', 'withdrawn', 'given up'].reduce((sum, phase) => sum + (phases[phase] ?? 0), 0);
  const pairs = [
    ['Nodes', store.layout.nodes.length], ['GPUs', gpus], ['Free', free],
    ['Waiting', waiting], ['Running', phases.running ?? 0], unhealthy ? ['Unhealthy', unhealthy] : null,
  ].filter(Boolean);
  byId('totals').replaceChildren(...pairs.map(([name, value]) => element('div', {children: [
    element('dt', {text: name}), element('dd', {text: value.toLocaleString('en')}),
  ]})));
  document.title = waiting ? `(${waiting}) Muster` : 'Muster';
  const notes = [];
  if (!store.totals.ready) notes.push('The service has not read the whole cluster yet.');
  else if (!store.totals.leads) notes.push('This replica does not lead: it plans no gang. What runs is shown; refusals and reservations are with the leader.');
  banner(notes.join(' '));
}

function veil(text) {
  byId('scroller').classList.toggle('veiled', Boolean(text));
  if (text) byId('veil-text').textContent = text;
}

function cover() {
  veil(store.layout.nodes.length ? '' : store.totals.ready
    ? 'No node with GPUs.\nA node is shown once it offers nvidia.com/gpu, amd.com/gpu or aliyun.com/gpu.' : 'The service reads the cluster…');
}

function all() {
  totals();
  cover();
  refreshSelection();
  painter.arrange();
  grid.render();
  list.render();
  drawDetail();
  table.render();
}

const drawTable = () => table.render();
const drawList = () => list.render();
const renderList = later(() => redraw(drawList), 50);

// Draw now, or once the pointer is released: a button that is replaced while it is pressed gets no click.
function redraw(work) {
  if (pressed) afterPress.add(work); else work();
}

function release() {
  clearTimeout(pressed);
  pressed = 0;
  for (const work of afterPress) work();
  afterPress.clear();
}

function changed(id, change) {
  const began = performance.now();
  const drawn = store.apply(id, change);
  painter.update(drawn);
  const script = performance.now() - began;
  requestAnimationFrame(() => setTimeout(() => {   // for benchmarks: until the frame is there
    document.dispatchEvent(new CustomEvent('muster:drawn', {detail: {cells: drawn.cells.length, script, frame: performance.now() - began}}));
  }));
  if (drawn.cells.length || drawn.nodes.length) grid.update([...drawn.cells, ...drawn.nodes.map(node => store.layout.nodes[node].cell)]);
  if (change.totals) { totals(); cover(); }
  if (change.gangs || change.left || change.owners) renderList();
  if (byId('table').open) renderTable();
  refreshSelection();
  if (opened && (change.gangs ?? []).some(row => row.key === opened) || (change.left ?? []).includes(opened)) refreshDetail();
}

function inspect(node, gpu) {
  const told = store.layout?.nodes[node];
  const line = byId('inspector');
  if (!told) return line.replaceChildren();
  const where = told.group.path.filter(Boolean).map((name, at) => `${store.layout.scopes[at]} ${name}`);
  const what = gpu < 0 ? count(told.gpus, 'GPU') : gpuText(told, gpu, store.cells[told.cell + gpu], nameOf, store.closed.get(node));
  line.replaceChildren(element('b', {text: told.name}), `  ${[...where, told.model, what].filter(Boolean).join(' · ')}`);
}

function legend() {
  const sprites = new Sprites(13, 2, painter.colours);
  const items = [
    [FIRST_GANG, 'a gang (letters)'], [FIRST_GANG + 1, 'reserved for it'], [FREE, 'free'], [OTHERS, 'other pods'],
    [SHARED, 'shared'], [UNKNOWN, 'index not known'], [UNHEALTHY, 'unhealthy'], [CLOSED_MARK, 'node takes no pods'],
  ];
  byId('legend').replaceChildren(...items.map(([number, text]) => element('li', {children: [sprites.of(number), element('span', {text})]})));
}

function setTheme(choice) {
  if (choice === 'system') delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = choice;
  painter.recolour();
  list.colours = painter.colours;
  legend();
  if (store.totals) { list.render(); drawDetail(); }
}

// --- one gang --------------------------------------------------------------------------------------

function refreshSelection() {
  const number = opened ? store.numbers.get(opened) ?? -1 : -1;
  if (number === painter.selected) return;
  painter.selected = number;
  painter.soon();
  painter.onMove();
}

function select(number) {
  const key = number >= FIRST_GANG ? store.owners.get(number & ~1) : undefined;
  if (key !== undefined) open(key); else close();
}

async function open(key) {
  opened = key; said = null; others = null;
  history.replaceState(null, '', `#gang=${encodeURIComponent(key)}`);
  list.selected = key;
  refreshSelection();
  await refreshDetail();
  askAlternatives();
  if (opened === key) byId('detail').querySelector('h2')?.focus({preventScroll: true});
}

function close() {
  const key = opened;
  opened = ''; said = null; others = null; list.selected = '';
  history.replaceState(null, '', location.pathname + location.search);
  byId('detail').hidden = true;
  byId('gangs').hidden = false;
  refreshSelection();
  if (key && store.totals) {
    list.render();
    [...document.querySelectorAll('.gang')].find(each => each.dataset.key === key)?.focus();
  }
}

async function refreshDetail() {
  const key = opened;
  if (!key) return;
  try {
    const answer = await service.gang(key, AbortSignal.timeout(10000));
    if (key !== opened) return;
    said = answer;
    if (!isCopied()) redraw(drawDetail);
  } catch (problem) {
    if (key !== opened) return;
    const gone = problem instanceof service.Refused && problem.status === 404;
    if (gone || !said) showDetail([
      element('button', {class: 'quiet', type: 'button', text: '← All gangs', on: {click: close}}),
      element('h2', {tabindex: -1, text: gangName(store.rows.get(key), key)}),
      element('p', {class: 'say', text: gone ? 'This gang is gone: it has no pods any more.' : 'The service does not answer. It is asked again.'}),
    ]);
  }
}

// Asked once for each gang that is opened, and by the button: it takes the service up to some seconds.
async function askAlternatives() {
  const key = opened;
  if (!said?.nodes.length) return;
  let answer;
  try {
    answer = await service.alternatives(key, AbortSignal.timeout(ALTERNATIVES_MS));
  } catch {
    answer = {why_not: 'The service does not answer.'};
  }
  if (key !== opened) return;
  others = answer;
  redraw(drawDetail);
}

function askAgain() {
  if (!others) return;   // it is under way
  others = null;
  drawDetail();
  askAlternatives();
}

// Whether text of the gang is selected: it would no longer be after it is drawn again.
function isCopied() {
  const selection = getSelection();
  return !selection.isCollapsed && byId('detail').contains(selection.anchorNode);
}

function drawDetail() {
  if (!said || !opened) return;
  const row = store.ordered().find(each => each.key === opened);
  showDetail(detail({said, row, number: store.numbers.get(opened), dark: painter.colours.dark, now: store.now(), others, onBack: close, onAgain: askAgain}));
}

function showDetail(parts) {
  const root = byId('detail');
  const unfolded = [...root.querySelectorAll('details')].map(each => [each.querySelector('summary').textContent, each.open]);
  const focus = root.contains(document.activeElement) ? document.activeElement.tagName + document.activeElement.textContent : '';
  root.replaceChildren(...parts);
  for (const each of root.querySelectorAll('details')) {
    const before = unfolded.find(([text]) => text === each.querySelector('summary').textContent);
    if (before) each.open = before[1];
  }
  root.hidden = false;
  byId('gangs').hidden = true;
  if (focus) [...root.querySelectorAll('button, summary, h2')].find(each => each.tagName + each.textContent === focus)?.focus({preventScroll: true});
}

// --- the connection --------------------------------------------------------------------------------

function askToken(text) {
  veil('A token is needed.');
  setState('waiting', 'Token needed');
  byId('sign-in-error').textContent = text;
  if (!byId('sign-in').open) byId('sign-in').showModal();
  return woken();
}

function connected() {
  attempt = 0;
  setState('live', 'Live');
  totals();
  cover();
}

async function connectOnce() {
  stop = new AbortController();
  if (!store.id) {
    store.load(await service.state(stop.signal));
    all();
    performance.mark('muster:painted');
  }
  const anew = await service.follow(store.id, {onOpen: connected, onChange: changed}, stop.signal);
  if (anew) store.id = '';
  return anew;
}

async function pause(problem) {
  if (problem instanceof service.Refused && problem.status === 401) {
    const first = byId('sign-in-error').textContent === '' && !byId('sign-in').open && !sessionStorage.getItem('muster-token');
    return askToken(first ? '' : problem.message);
  }
  const forbidden = problem instanceof service.Refused && problem.status === 403;
  const wait = Math.max(problem?.afterMs ?? 0, Math.min(BACKOFF_MS[1], BACKOFF_MS[0] * 2 ** attempt++) * (0.75 + Math.random() / 2));
  if (forbidden) return askToken(problem.message);
  const since = store.heardAt ? ` Last news at ${new Date(store.heardAt).toLocaleTimeString([], {hourCycle: 'h23'})}.` : '';
  const why = problem instanceof service.Refused ? problem.message : 'The service does not answer.';
  setState(store.heardAt ? 'lost' : 'waiting', store.heardAt ? 'Disconnected' : 'Connecting');
  if (store.heardAt) banner(`${why}${since} Trying again.`);
  else veil(`${why} Trying again.\nIs the port still forwarded?`);
  return woken(wait);
}

async function connect() {
  for (;;) {
    try {
      if (document.hidden && stop.signal.aborted) await woken();
      if (await connectOnce()) continue;
      await pause(null);
    } catch (problem) {
      if (stop.signal.aborted && document.hidden) continue;
      if (!(problem instanceof service.Refused) && !(problem instanceof TypeError) && problem.name !== 'AbortError') console.error(problem);
      await pause(problem);
    }
  }
}

// --- what people do --------------------------------------------------------------------------------

byId('sign-in-form').addEventListener('submit', event => {
  event.preventDefault();
  service.setToken(byId('token').value.trim());
  byId('token').value = '';
  byId('sign-in').close();
  wake();
});
byId('filter').addEventListener('input', event => { list.filter = event.target.value; list.render(); });
byId('theme').addEventListener('change', event => { localStorage.setItem('muster-theme', event.target.value); setTheme(event.target.value); });
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => setTheme(byId('theme').value));
for (const [id, step] of [['zoom-out', -1], ['zoom-fit', 0], ['zoom-in', 1]]) {
  byId(id).addEventListener('click', () => { painter.zoom(step); byId('zoom-fit').setAttribute('aria-pressed', String(!painter.size)); });
}
byId('canvas').addEventListener('pointermove', event => {
  const at = painter.at(event.clientX, event.clientY);
  if (at) inspect(at.node, at.gpu);
  byId('canvas').style.cursor = at && at.gpu >= 0 && store.cells[store.layout.nodes[at.node].cell + at.gpu] >= FIRST_GANG ? 'pointer' : 'default';
});
byId('canvas').addEventListener('click', event => {
  const at = painter.at(event.clientX, event.clientY);
  select(at && at.gpu >= 0 ? store.cells[store.layout.nodes[at.node].cell + at.gpu] : FREE);
});
document.addEventListener('keydown', event => {
  if (event.key === 'Escape' && opened && !byId('sign-in').open) close();
});
let hiding = 0;
document.addEventListener('visibilitychange', () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(() => stop.abort(), HIDDEN_MS); else wake();
});
addEventListener('online', () => wake());
addEventListener('pointerdown', () => { clearTimeout(pressed); pressed = setTimeout(release, PRESS_MS); }, true);
addEventListener('pointerup', () => setTimeout(release), true);   // after the click
setInterval(() => list.tick(), 1000);
setInterval(() => { if (!document.hidden) refreshDetail(); }, DETAIL_MS);

byId('theme').value = localStorage.getItem('muster-theme') ?? 'system';
setTheme(byId('theme').value);
const asked = new URLSearchParams(location.hash.slice(1)).get('gang');
if (asked) open(asked);
connect();
