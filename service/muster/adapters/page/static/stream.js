// Asks the service. Changes come as server-sent events over fetch, because EventSource can't send a token.

const SILENT_MS = 45000;   // the service says something every 15 s
let token = sessionStorage.getItem('muster-token') ?? '';

export class Refused extends Error {
  constructor(status, text, after) {
    super(text.trim() || `the service answered ${status}`);
    this.status = status;
    this.afterMs = after;
  }
}

export function setToken(value) {
  token = value;
  if (value) sessionStorage.setItem('muster-token', value); else sessionStorage.removeItem('muster-token');
}

async function ask(path, {headers = {}, signal} = {}) {
  const sent = token ? {...headers, Authorization: `Bearer ${token}`} : headers;
  const answer = await fetch(path, {headers: sent, signal, cache: 'no-store', credentials: 'omit', redirect: 'error'});
  if (!answer.ok) throw new Refused(answer.status, await answer.text(), 1000 * (+answer.headers.get('Retry-After') || 0));
  return answer;
}

// The state is packed once for each generation, so the time comes from the header of the answer.
export async function state(signal) {
  const answer = await ask('api/state', {signal});
  return {...await answer.json(), now: (Date.parse(answer.headers.get('Date')) || Date.now()) / 1000};
}

export const gang = async (key, signal) => (await ask(`api/gang?key=${encodeURIComponent(key)}`, {signal})).json();

export const alternatives = async (key, signal) => (await ask(`api/alternatives?key=${encodeURIComponent(key)}`, {signal})).json();

// Split a stream of text into events. `push` returns the events that are complete.
export class Parser {
  constructor() { this.rest = ''; }

  push(text) {
    const parts = (this.rest + text).split('\n\n');
    this.rest = parts.pop();
    return parts.map(part => {
      const event = {type: 'message', id: '', data: ''};
      for (const line of part.split('\n')) {
        if (line.startsWith('id: ')) event.id = line.slice(4);
        else if (line.startsWith('event: ')) event.type = line.slice(7);
        else if (line.startsWith('data: ')) event.data += line.slice(6);
      }
      return event;
    }).filter(event => event.data);
  }
}

// Call `onChange` for each change after `id`. Return true if the state must be read anew, false if the stream ended.
export async function follow(id, {onOpen, onChange}, signal) {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENT_MS);
  const stop = AbortSignal.any([signal, silence.signal]);
  try {
    const answer = await ask('api/events', {headers: {'Last-Event-ID': id}, signal: stop});
    onOpen();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new Parser();
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return false;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENT_MS);
      for (const event of parser.push(value)) {
        if (event.type === 'reset') return true;
        onChange(event.id, JSON.parse(event.data));
      }
    }
  } finally {
    clearTimeout(timer);
    silence.abort();
  }
}
