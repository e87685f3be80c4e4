// Colours and marks of cells. A cell is never told by its colour alone: each state has a mark of its own, and a
// gang has letters.

import {CLOSED_MARK, FIRST_GANG, FREE, OTHERS, SHARED, UNHEALTHY, UNKNOWN} from './words.js';

const HUES = [250, 40, 155, 320, 95, 205, 10, 180, 290, 65, 130, 345];

export function theme() {
  const probe = document.createElement('i');
  document.body.append(probe);
  const read = name => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const names = ['ground', 'panel', 'text', 'soft', 'faint', 'line', 'strong', 'free', 'free-edge', 'others', 'others-mark', 'bad', 'warn', 'accent'];
  const colours = Object.fromEntries(names.map(name => [name, read(name)]));
  const dark = getComputedStyle(document.documentElement).colorScheme === 'dark'
    || (getComputedStyle(document.documentElement).colorScheme !== 'light' && matchMedia('(prefers-color-scheme: dark)').matches);
  probe.remove();
  return {...colours, dark};
}

export function gangColour(number, dark) {
  const index = ((number - FIRST_GANG) >> 1) % HUES.length;
  const light = (dark ? 0.74 : 0.7) + (index % 2 ? -0.07 : 0.03);
  return `oklch(${light} ${dark ? 0.105 : 0.12} ${HUES[index]})`;
}

const styleOf = number => (number < FIRST_GANG ? number : FIRST_GANG + (number - FIRST_GANG) % (2 * HUES.length));

// Pictures of cells, drawn once for each style and size.
export class Sprites {
  constructor(size, scale, colours) {
    this.size = size;
    this.scale = scale;
    this.colours = colours;
    this.made = new Map();
  }

  of(number) {
    const style = styleOf(number);
    let sprite = this.made.get(style);
    if (!sprite) {
      sprite = document.createElement('canvas');
      sprite.width = sprite.height = Math.round(this.size * this.scale);
      const pen = sprite.getContext('2d');
      pen.scale(sprite.width / this.size, sprite.height / this.size);
      this.draw(pen, style);
      this.made.set(style, sprite);
    }
    return sprite;
  }

  draw(pen, style) {
    const {size, colours} = this;
    const radius = size >= 9 ? Math.min(4, size * 0.18) : size >= 6 ? 1 : 0;
    const box = inset => {
      pen.beginPath();
      pen.roundRect(inset, inset, size - 2 * inset, size - 2 * inset, Math.max(0, radius - inset));
    };
    const fill = colour => { box(0); pen.fillStyle = colour; pen.fill(); };
    const edge = (colour, width = size >= 9 ? 1.25 : 1) => { box(width / 2); pen.strokeStyle = colour; pen.lineWidth = width; pen.stroke(); };
    const line = (colour, points, width) => {
      pen.strokeStyle = colour; pen.lineWidth = width; pen.lineCap = 'round'; pen.beginPath();
      for (const [x1, y1, x2, y2] of points) { pen.moveTo(x1 * size, y1 * size); pen.lineTo(x2 * size, y2 * size); }
      pen.stroke();
    };
    const thin = Math.max(1, size / 11);
    if (style === FREE) { fill(colours.free); edge(colours['free-edge']); }
    else if (style === CLOSED_MARK) line(colours.warn, [[0, .5, .3, .5], [.7, .5, 1, .5]], 2);
    else if (style === UNHEALTHY) {
      fill(colours.free); edge(colours.bad);
      line(colours.bad, [[.28, .28, .72, .72], [.72, .28, .28, .72]], thin * 1.2);
    } else if (style === OTHERS) {
      fill(colours.others);
      line(colours['others-mark'], [[.28, .5, .72, .5]], Math.max(1, size / 8));
    } else if (style === SHARED) {
      fill(colours.free); edge(colours.soft);
      pen.beginPath(); pen.moveTo(0, size); pen.lineTo(size, size); pen.lineTo(size, 0); pen.closePath();
      pen.save(); box(0); pen.clip(); pen.beginPath(); pen.moveTo(0, size); pen.lineTo(size, size); pen.lineTo(size, 0);
      pen.closePath(); pen.fillStyle = colours.soft; pen.fill(); pen.restore();
    } else if (style === UNKNOWN) {
      fill(colours.free); edge(colours.soft);
      pen.fillStyle = colours.soft; pen.beginPath(); pen.arc(size / 2, size / 2, Math.max(1, size / 7), 0, 7); pen.fill();
    } else {
      const colour = gangColour(style, colours.dark);
      if (!(style & 1)) return fill(colour);
      fill(colours.free);
      pen.save(); box(0); pen.clip();
      pen.globalAlpha = 0.85;
      const step = Math.max(2.5, size / 3.2);
      pen.strokeStyle = colour; pen.lineWidth = Math.max(1, step * 0.4);
      pen.beginPath();
      for (let x = -size; x < 2 * size; x += step) { pen.moveTo(x, size); pen.lineTo(x + size, 0); }
      pen.stroke(); pen.restore();
      edge(colour);
    }
  }
}
