// One gang: what blocks it and what would help, its place with links and bandwidth, what was refused, its timeline.

import {element} from './dom.js';
import {chip} from './list.js';
import {age, count} from './words.js';

const FAST = /^(NV\d+|XGMI)$/;
const clock = seconds => new Date(seconds * 1000).toLocaleTimeString([], {hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23'});
const speed = number => `${+number.toFixed(1)} GB/s`;

export function detail({said, row, number, dark, now, others, onBack, onAgain}) {
  const gang = said.gang;
  const parts = [
    element('button', {class: 'quiet', type: 'button', text: '← All gangs', on: {click: onBack}}),
    element('h2', {tabindex: -1, children: [chip(number, row?.position, dark), element('span', {text: `${gang.namespace}/${gang.name}`})]}),
    facts(gang, row, now),
    ...blocks(gang),
    ...place(said),
    ...plan(said),
    ...alternatives(said, others, onAgain),
    ...refused(said),
    ...timeline(said, now),
  ];
  return parts.filter(Boolean);
}

function facts(gang, row, now) {
  const pairs = [
    ['Phase', gang.phase],
    ['Members', `${gang.present} of ${gang.needed} here, ${gang.bound} bound`],
    ['Age', gang.created ? age(now - gang.created) : 'not known'],
    ['Position', row?.position ? `${row.position} in line` : null],
    ['Priority', String(gang.priority)],
    ['Queue', gang.queue],
    ['Read from', gang.dialect],
  ];
  return element('dl', {class: 'facts', children: pairs.filter(([, value]) => value).flatMap(([name, value]) => [
    element('dt', {text: name}), element('dd', {text: value}),
  ])});
}

function help(text, tried) {
  return element('p', {class: 'help', children: [element('b', {text: tried ? 'It would help (tried, it fits then): ' : 'It would help: '}), text]});
}

function victims(clearing) {
  if (!clearing?.says) return [];
  const said = element('p', {class: 'say', text: `${clearing.says[0].toUpperCase()}${clearing.says.slice(1)}`});
  if (!clearing.victims.length) return [said];
  const rows = clearing.victims.map(victim => element('tr', {children: [
    element('th', {scope: 'row', text: victim.name}),
    element('td', {text: `priority ${victim.priority}`}),
    element('td', {text: victim.ends ? count(victim.pod_count, 'pod') : `${victim.pod_count} of ${count(victim.members, 'pod')}`}),
    element('td', {text: count(victim.gpus, 'GPU')}),
  ]}));
  const more = clearing.victim_count - clearing.victims.length;
  if (more) rows.push(element('tr', {children: [element('td', {colspan: 4, text: `and ${more} more`})]}));
  return [said, element('details', {children: [
    element('summary', {text: 'Whose end would make room'}),
    element('div', {class: 'wide', children: [element('table', {children: rows})]}),
  ]})];
}

function blocks(gang) {
  const found = [];
  for (const cause of gang.causes) found.push(element('p', {class: 'say', text: cause.says}));
  found.push(...victims(gang.clearing));
  for (const text of gang.helps) found.push(help(text, true));
  for (const text of new Set(gang.causes.map(cause => cause.helps))) found.push(help(text, false));
  if (!found.length && gang.reason && gang.phase !== 'running') found.push(element('p', {class: 'say', text: gang.reason}));
  return found.length ? [element('h3', {text: 'Why it waits'}), ...found] : [];
}

function place(said) {
  if (!said.nodes.length) return [];
  const rows = said.nodes.map(node => element('tr', {children: [
    element('th', {scope: 'row', text: node.node}),
    element('td', {text: String(node.pods)}),
    element('td', {text: `${node.gpus.join(', ')}${node.unindexed ? ` and ${node.unindexed} not known` : ''}`}),
    element('td', {text: node.ring ? speed(node.ring.weakest) : node.gpus.length < 2 ? 'one GPU' : 'not known'}),
  ]}));
  const head = ['Node', 'Pods', 'GPUs', 'Slowest link'].map(text => element('th', {scope: 'col', text}));
  const parts = [
    element('h3', {text: said.nodes.some(node => node.reserved) ? 'Place (reserved, not all members are bound)' : 'Place'}),
    element('div', {class: 'wide', children: [element('table', {children: [element('thead', {children: [element('tr', {children: head})]}), element('tbody', {children: rows})]})]}),
  ];
  if (said.nodes_left_out) parts.push(element('p', {class: 'note', text: `and ${count(said.nodes_left_out, 'more node')}`}));
  const drawn = said.nodes.find(node => node.links);
  if (drawn) parts.push(links(drawn));
  parts.push(element('p', {class: 'note', text: 'Bandwidth is modelled from the kinds of links, along the best ring. It is not measured.'}));
  parts.push(pods(said));
  return parts;
}

function links(node) {
  const head = [element('td'), ...node.gpus.map(gpu => element('th', {scope: 'col', text: String(gpu)}))];
  const rows = node.links.map((kinds, at) => element('tr', {children: [
    element('th', {scope: 'row', text: String(node.gpus[at])}),
    ...kinds.map(kind => element('td', {class: FAST.test(kind) ? 'fast' : null, text: kind === 'X' ? '·' : kind})),
  ]}));
  return element('details', {open: node.gpus.length <= 8, children: [
    element('summary', {text: `Links on ${node.node}`}),
    element('div', {class: 'wide', children: [element('table', {class: 'links', 'aria-label': `Links between the gang's GPUs on ${node.node}`, children: [element('tr', {children: head}), ...rows]})]}),
  ]});
}

function pods(said) {
  const rows = said.pods.map(pod => element('tr', {children: [
    element('th', {scope: 'row', text: pod.pod}),
    element('td', {text: pod.node}),
    element('td', {text: `${pod.gpus.join(', ') || (pod.unindexed ? `${pod.unindexed} not known` : 'no GPU')}${pod.units ? ` (${pod.units} GiB each)` : ''}`}),
    element('td', {text: pod.reserved ? 'reserved' : 'bound'}),
  ]}));
  if (said.pods_left_out) rows.push(element('tr', {children: [element('td', {colspan: 4, text: `and ${count(said.pods_left_out, 'more pod')}`})]}));
  return element('details', {children: [
    element('summary', {text: `${count(said.pods.length + said.pods_left_out, 'member')} with a place${said.without_place ? `, ${said.without_place} without` : ''}`}),
    element('div', {class: 'wide', children: [element('table', {children: rows})]}),
  ]});
}

function plan(said) {
  const decided = said.plan;
  if (!decided) {
    const restarted = said.nodes.length && said.gang.phase === 'running';
    return restarted ? [element('h3', {text: 'How it was decided'}), element('p', {class: 'note', text: 'Not known: another process of Muster decided it, or members came and went since. What it said is in the annotation gpu.topology/decision of the pods.'})] : [];
  }
  const proof = decided.optimal ? `proven optimal${decided.as_far_as}` : `not proven optimal${decided.unproven ? ` at ${decided.unproven}` : ''}${decided.gap !== null ? `, at most ${(100 * decided.gap).toFixed(1)} % better exists` : ''}`;
  const lines = [
    decided.domain ? `In ${decided.domain}, ${proof}.` : `No single domain holds all members, ${proof}.`,
    decided.weakest_link_gb_per_s !== null ? `Slowest link inside the nodes: ${speed(decided.weakest_link_gb_per_s)} modelled; all rings together ${speed(decided.ring_gb_per_s)}.` : null,
    decided.truncated ? 'Time cut the search short.' : null,
    ...decided.doubts.map(doubt => `Not known: ${doubt}.`),
  ].filter(Boolean).map(text => element('p', {class: 'say', text}));
  const steps = decided.steps.map(step => element('tr', {children: [
    element('th', {scope: 'row', text: step.level}),
    element('td', {children: [
      element('div', {text: step.method}),
      ...step.declined.map(([method, why]) => element('div', {class: 'note', text: `not ${method}: ${why}`})),
    ]}),
  ]}));
  const levels = decided.levels.map(([name, value]) => element('tr', {children: [element('th', {scope: 'row', text: name}), element('td', {text: value})]}));
  return [
    element('h3', {text: 'How it was decided'}), ...lines,
    element('details', {children: [element('summary', {text: 'Values of the objective, level by level'}), element('table', {children: levels})]}),
    steps.length ? element('details', {children: [element('summary', {text: 'Methods: which one decided, and which declined'}), element('table', {children: steps})]}) : null,
  ];
}

function alternatives(said, others, onAgain) {
  if (!said.nodes.length) return [];
  return [element('h3', {id: 'alternatives', text: 'Alternatives'}), ...compared(others), element('button', {
    class: 'quiet', type: 'button', text: 'Compute alternatives again', on: {click: onAgain},
  })];
}

function compared(others) {
  if (!others) return [element('p', {class: 'note', text: 'The service computes them…'})];
  if (others.why_not) return [element('p', {class: 'say', text: `Not known. ${others.why_not}`})];
  const rows = others.tried.map(each => element('tr', {children: [
    element('th', {scope: 'row', text: each.domain}), element('td', {text: each.says}),
  ]}));
  const head = ['Place', `Compared with ${others.domain}`].map(text => element('th', {scope: 'col', text}));
  return [
    rows.length ? element('table', {'aria-labelledby': 'alternatives', children: [
      element('thead', {children: [element('tr', {children: head})]}), element('tbody', {children: rows}),
    ]}) : element('p', {class: 'say', text: 'None was found.'}),
    element('p', {class: 'note', text: `${others.note} The best comes first.${others.others ? ` And ${others.others}.` : ''}`}),
  ];
}

function refused(said) {
  if (!said.refused.length) return [];
  const rows = said.refused.map(each => element('tr', {children: [
    element('th', {scope: 'row', text: each.node}), element('td', {text: `${each.plugin}: ${each.message}`}),
  ]}));
  return [
    element('h3', {text: 'Nodes that were planned and refused'}),
    element('table', {children: rows}),
    said.refused_left_out ? element('p', {class: 'note', text: `and ${count(said.refused_left_out, 'more node')}`}) : null,
  ];
}

function timeline(said, now) {
  const steps = said.timeline;
  const items = steps.map((step, at) => {
    const until = steps[at + 1]?.at ?? now;
    return element('li', {children: [
      element('time', {datetime: new Date(step.at * 1000).toISOString(), text: clock(step.at)}),
      element('span', {class: 'stop', 'aria-hidden': 'true'}),
      element('div', {children: [
        element('div', {text: `${step.phase}${at + 1 < steps.length ? ` for ${age(until - step.at)}` : ''}`}),
        element('div', {class: 'note', text: step.why}),
      ]}),
    ]});
  });
  const earlier = said.gang.created && said.gang.created < said.known_since;
  const note = said.timeline_cut ? `Only the last ${steps.length} steps are kept.`
    : earlier ? `The gang is older than this process, which began at ${clock(said.known_since)}. What happened before is not known here.` : '';
  return [
    element('h3', {text: 'Timeline'}),
    note ? element('p', {class: 'note', text: note}) : null,
    items.length ? element('ol', {class: 'timeline', children: items}) : element('p', {class: 'note', text: 'No step is known.'}),
  ];
}
