// Words for figures and states. Nothing here touches the page.

export const FREE = 0, UNHEALTHY = 1, OTHERS = 2, SHARED = 3, UNKNOWN = 4, CLOSED_MARK = 5, FIRST_GANG = 8;
export const CORDONED = 1, NOT_READY = 2, GONE = 3;

const STATES = {
  [FREE]: 'free', [UNHEALTHY]: 'unhealthy', [OTHERS]: 'taken by a pod of no gang',
  [SHARED]: 'shared by several gangs', [UNKNOWN]: 'may be taken: the node does not say which GPUs are',
};
export const CLOSED = {[CORDONED]: 'cordoned', [NOT_READY]: 'not ready', [GONE]: 'gone'};

// The letters of a gang on the map and in the list: A to Z, then AA, AB …
export function tag(number) {
  let text = '';
  for (let left = (number - FIRST_GANG) >> 1; left >= 0; left = Math.floor(left / 26) - 1) {
    text = String.fromCharCode(65 + left % 26) + text;
  }
  return text;
}

export function age(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  for (const [unit, length] of [['d', 86400], ['h', 3600], ['m', 60]]) {
    if (whole >= 2 * length) return `${Math.floor(whole / length)}${unit}`;
  }
  return `${whole}s`;
}

export const count = (number, noun) => `${number.toLocaleString('en')} ${noun}${number === 1 ? '' : 's'}`;

// What people call a gang. A key is namespace/dialect/name, and perhaps owners. Names in rows are printable already.
export function gangName(row, key) {
  if (row) return `${row.namespace}/${row.name}`;
  const [namespace, , name = ''] = key.split('/');
  return `${namespace}/${name}`.replace(/[\p{C}\u2028\u2029]/gu, '\uFFFD');
}

export function owner(number, nameOf) {
  if (number < FIRST_GANG) return STATES[number];
  const name = nameOf(number & ~1);
  return number & 1 ? `reserved for ${name}` : name;
}

// One sentence about a GPU, for a pointer and for a screen reader.
export function gpuText(node, gpu, number, nameOf, closed) {
  const island = node.islands ? `, NVLink domain ${node.islands[gpu]} of the node` : '';
  const domain = node.domain ? `, NVLink domain ${node.domain}` : island;
  const shut = closed ? `, node is ${CLOSED[closed]}` : '';
  return `GPU ${gpu}: ${owner(number, nameOf)}${domain}${shut}`;
}
