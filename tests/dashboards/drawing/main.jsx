// Draws a dashboard with Grafana's own panels over a live Prometheus. The address names it: ?dashboard=operators.
// Variables and repeated rows are not Grafana's here: see panels.py for the values of variables.
import React from 'react';
import { createRoot } from 'react-dom/client';
import { createTheme, FieldType, getDisplayProcessor, LoadingState, ThemeContext, toDataFrame } from '@grafana/data';
import * as ui from '@grafana/ui';

const theme = createTheme({ colors: { mode: 'dark' } });
const CELL = 34;
const now = Math.floor(Date.now() / 1000);
const { dashboard, values, seconds } = await (await fetch(`/about${location.search}`)).json();

const filled = (expr) => Object.entries(values).reduce((text, [name, value]) => text.replaceAll(name, value), expr);
const named = (labels, legend) => legend.replace(/{{\s*(\w+)\s*}}/g, (_, label) => labels[label] ?? '');

async function ask(target) {
  const expr = encodeURIComponent(filled(target.expr));
  const step = Math.max(1, Math.round(seconds / 120));
  const url = target.instant
    ? `/api/v1/query?query=${expr}`
    : `/api/v1/query_range?query=${expr}&start=${now - seconds}&end=${now}&step=${step}`;
  const { data, error } = await (await fetch(url)).json();
  if (error) throw new Error(`${target.expr}: ${error}`);
  return data.result.map((each) => ({ ...each, name: named(each.metric, target.legendFormat) }));
}

function shown(name, values, panel, at, config = {}) {
  const { unit, min, thresholds, mappings } = panel.fieldConfig.defaults;
  const field = { name, type: FieldType.number, values, config: { unit, min, thresholds, mappings, ...config } };
  field.state = { seriesIndex: at };
  field.display = getDisplayProcessor({ field, theme });
  return field;
}

function Lines({ panel, series, width, height }) {
  const custom = panel.fieldConfig.defaults.custom ?? {};
  const grid = [...new Set(series.flatMap((each) => each.values.map(([time]) => time)))].sort((a, b) => a - b);
  const fields = series.map((each, at) => {
    const by = new Map(each.values);
    const numbers = grid.map((time) => (by.has(time) && isFinite(+by.get(time)) ? +by.get(time) : null));
    const stacking = { mode: custom.stacking?.mode ?? 'none', group: 'A' };
    return shown(each.name, numbers, panel, at, {
      color: { mode: 'palette-classic' },
      custom: { ...custom, drawStyle: 'line', stacking, spanNulls: false },
    });
  });
  const time = { name: 'Time', type: FieldType.time, values: grid.map((each) => each * 1000), config: {} };
  time.display = getDisplayProcessor({ field: time, theme });
  const range = { from: { valueOf: () => (now - seconds) * 1000 }, to: { valueOf: () => now * 1000 } };
  return (
    <ui.TimeSeries frames={[toDataFrame({ fields: [time, ...fields] })].map((frame) => {
      frame.fields.forEach((field, at) => Object.assign(field, { display: [time, ...fields][at].display, state: { seriesIndex: at - 1 } }));
      return frame;
    })} width={width} height={height} timeRange={range} timeZone="utc"
      legend={{ displayMode: 'list', placement: 'bottom', showLegend: true, calcs: [] }} />
  );
}

function Figure({ panel, series, width, height }) {
  const [each] = series;
  const field = shown(each.name, [+each.value[1]], panel, 0, { color: { mode: 'thresholds' } });
  return <ui.BigValue theme={theme} width={width} height={height} value={field.display(+each.value[1])}
    colorMode="value" graphMode="none" />;
}

function Bars({ panel, series, width, height }) {
  const numbers = series.map((each) => +each.value[1]);
  const top = Math.max(1, ...numbers);
  const size = Math.min(34, Math.floor(height / series.length));
  return series.map((each, at) => {
    const color = panel.fieldConfig.defaults.color;
    const field = shown(each.name, numbers, panel, at, { min: 0, max: top, color });
    return <ui.BarGauge key={each.name} theme={theme} width={width} height={size - 4} field={field.config}
      value={{ ...field.display(numbers[at]), title: each.name }} display={field.display} orientation="horizontal"
      displayMode="basic" />;
  });
}

function Content(props) {
  const { panel, series } = props;
  if (panel.type === 'text') return <pre style={{ color: '#ccccdc', whiteSpace: 'pre-wrap', margin: 8 }}>{panel.options.content}</pre>;
  if (panel.type === 'table') return <div style={{ color: '#888', margin: 8 }}>{panel.targets[0].query}</div>;
  if (!series.length) return <div style={{ color: '#888', margin: 8 }}>No data</div>;
  const Kind = { timeseries: Lines, stat: Figure, bargauge: Bars }[panel.type];
  return <Kind {...props} />;
}

const unit = innerWidth / 24;
const cells = [];
for (const panel of dashboard.panels) {
  const { x, y, w, h } = panel.gridPos;
  const style = { position: 'absolute', left: x * unit + 4, top: y * CELL + 4 };
  if (panel.type === 'row') {
    cells.push(<h3 key={panel.id} style={{ ...style, color: '#ccccdc', margin: 4, font: '500 16px Inter, sans-serif' }}>{panel.title}</h3>);
    continue;
  }
  const series = [];
  for (const target of panel.targets ?? []) if (target.expr) series.push(...(await ask(target)));
  cells.push(
    <div key={panel.id} style={style}>
      <ui.PanelChrome title={panel.title} width={w * unit - 8} height={h * CELL - 8}>
        {(width, height) => <Content panel={panel} series={series} width={width} height={height} />}
      </ui.PanelChrome>
    </div>,
  );
}
createRoot(document.getElementById('app')).render(
  <ThemeContext.Provider value={theme}><ui.GlobalStyles />{cells}</ThemeContext.Provider>,
);
