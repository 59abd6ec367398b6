// Plots that move, and bars by day: uPlot with a legend of our own, so that values can be read without a mouse.

/* global uPlot */
import { el, setText } from "./dom.js";

const HEIGHT = 170;
/** What a moving plot shows of time, in seconds: all there is, from two minutes to ten. */
const SPAN_MIN = 120;
const SPAN_MAX = 600;

const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const hourMinute = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const withSeconds = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

/** Times below a plot: with seconds where minutes would stand there twice. */
function times(_plot, splits) {
  const format = splits[1] - splits[0] < 60 ? withSeconds : hourMinute;
  return splits.map((at) => format.format(at * 1000));
}

/** Points without neighbours, which no line would show. */
function lonely(plot, series) {
  const values = plot.data[series];
  const found = [];
  for (let index = 0; index < values.length; index += 1) {
    const isAlone = (values[index - 1] ?? null) === null && (values[index + 1] ?? null) === null;
    if (values[index] !== null && isAlone) found.push(index);
  }
  return found;
}

const font = "12px system-ui, sans-serif";

function axes(formatX, formatY) {
  const common = { stroke: colour("muted"), font, ticks: { show: false } };
  const grid = { stroke: colour("line"), width: 1 };
  return [
    { ...common, grid: { show: false }, values: formatX, size: 24, space: 70 },
    { ...common, grid, values: (_plot, splits) => splits.map(formatY), size: 58, space: 32 },
  ];
}

/** What both kinds of plots have in common: a caption, a canvas as wide as its place, and colours of the present scheme. */
class Figure {
  constructor(figure, title, series, format) {
    this.series = series;
    this.format = format;
    this.title = title;
    this.values = series.map(() => el("b", {}, "–"));
    const legend = series.map((one, index) =>
      el("li", {}, one.colour && el("span", { class: `swatch ${one.colour}${one.dash ? " dashed" : ""}`, "aria-hidden": "true" }), one.name, " ", this.values[index]),
    );
    this.hint = el("span", { class: "muted" });
    this.waiting = el("p", { class: "waiting" }, "Collecting");
    this.canvas = el("div", { class: "canvas", role: "img", "aria-label": title }, this.waiting);
    figure.replaceChildren(el("figcaption", {}, el("h3", {}, title), this.hint, el("ul", { class: "legend" }, legend)), this.canvas);
    new ResizeObserver(() => this.fit()).observe(this.canvas);
    dark.addEventListener("change", () => this.redraw());
  }

  fit() {
    const width = this.canvas.clientWidth;
    if (width > 0 && this.plot && this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
    else if (width > 0 && !this.plot && this.data) this.draw();
  }

  redraw() {
    this.plot?.destroy();
    this.plot = undefined;
    if (this.data) this.draw();
  }

  show(data) {
    this.data = data;
    const isEmpty = !this.hasValues();
    this.waiting.hidden = !isEmpty;
    if (isEmpty) {
      setText(this.waiting, data[0].length === 0 ? "Collecting" : "Nothing yet");
      this.plot?.destroy(); // what it showed is too old by now
      this.plot = undefined;
      this.showValues(null);
      return;
    }
    if (this.plot) this.plot.setData(data);
    else this.draw();
    this.showValues(null);
  }

  /** Whether there is anything to see: a plot of zeros only is not shown. */
  hasValues() {
    const [at, ...columns] = this.data;
    return at.length > 0 && columns.some((column) => column.some((value) => value !== null && value !== 0));
  }

  draw() {
    const width = this.canvas.clientWidth;
    if (width === 0 || !this.hasValues()) return; // it is not shown now
    this.plot = new uPlot({ width, height: HEIGHT, ...this.options() }, this.data, this.canvas);
  }

  /** The last values that there are, or those of the point below the mouse. */
  showValues(index) {
    const value = (column) => (index === null ? column.findLast((known) => known !== null) : column[index]);
    const shown = this.series.map((one, number) => (one.format ?? this.format)(value(this.data[number + 1])));
    shown.forEach((text, number) => setText(this.values[number], text));
    setText(this.hint, this.hintAt(index));
    if (index === null) {
      const values = this.series.map((one, number) => `${one.name} ${shown[number]}`).join(", ");
      this.canvas.setAttribute("aria-label", `${this.title}: ${values}`);
    }
  }

  hooks() {
    return { setCursor: [(plot) => this.showValues(plot.cursor.idx ?? null)] };
  }
}

/** Lines over the last minutes. */
export class Lines extends Figure {
  hintAt(index) {
    return index === null ? "" : new Date(this.data[0][index] * 1000).toLocaleTimeString(undefined, { hourCycle: "h23" });
  }

  options() {
    const span = () => {
      const at = this.data[0];
      const last = at[at.length - 1];
      return [last - Math.min(SPAN_MAX, Math.max(SPAN_MIN, last - at[0])), last];
    };
    return {
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, y: false, points: { size: 7 }, sync: { key: "time" } },
      scales: { x: { range: span }, y: { range: (_plot, _min, max) => [0, Math.max(max * 1.1, 1e-3)] } },
      axes: axes(times, (value) => this.format(value)),
      series: [{}, ...this.series.map((one) => ({
        stroke: colour(one.colour), width: 1.75, dash: one.dash ? [5, 4] : undefined,
        points: { show: true, size: 5, filter: lonely, fill: colour(one.colour) },
      }))],
      hooks: this.hooks(),
    };
  }
}

/** A bar for each day. */
export class Bars extends Figure {
  constructor(figure, title, series, format, moment) {
    super(figure, title, series, format);
    this.moment = moment;
  }

  hintAt(index) {
    return this.moment(this.data[0][index ?? this.data[0].length - 1]);
  }

  options() {
    const bars = uPlot.paths.bars({ size: [0.7, 48], radius: 0.12 });
    return {
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, y: false, points: { show: false } },
      scales: {
        x: { time: false, range: () => [Math.min(this.data[0][0], this.data[0].at(-1) - 6) - 0.6, this.data[0].at(-1) + 0.6] },
        y: { range: (_plot, _min, max) => [0, Math.max(max * 1.1, 1)] },
      },
      axes: axes(
        (_plot, splits) => splits.map((at) => (Number.isInteger(at) ? this.moment(at).slice(5) : "")),
        (value) => this.format(value),
      ),
      // The second column is written beside the bars, and has no bars.
      series: [{}, ...this.series.map((one, index) => (index === 0 ? { paths: bars, fill: colour(one.colour), points: { show: false } } : { show: false }))],
      hooks: this.hooks(),
    };
  }
}
