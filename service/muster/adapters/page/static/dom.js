// Elements from data. Text is only ever set as text: a name from the cluster can't become markup.

export function element(name, {text, children = [], on = {}, ...attributes} = {}) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(key, ''); else if (value !== false && value != null) made.setAttribute(key, value);
  }
  if (text !== undefined) made.textContent = text;
  for (const [event, handler] of Object.entries(on)) made.addEventListener(event, handler);
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}

export const byId = id => document.getElementById(id);
