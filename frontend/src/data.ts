// What `compiled.report` writes into the page: see src/meshwright/compile/report.py.

export interface Collective {
  kind: string;
  axes: string[];
  bytes: number;
  seconds: number;
  share: number | null;
  times: number;
  line: string | null;
  stack: string[];
  scopes: string[];
  direction: string;
  value: string;
  why: string;
  alternative: string | null;
  fix: string | null;
  exposed_seconds: number | null;
  values: number;
  var: number | null;
}

// Collectives that are one row: by their numbers, with what is said of all of them.
export interface Group {
  members: number[];
  bytes: string;
  line: string;
  value: string;
  why: string;
  written: string[]; // where the axes are that do not fit
  inside: string[];
}

// One box: start and length in seconds, the numbers of its name and of its line, what it is, and how much of that time
// its lane is busy with it, if that is not all.
export type Bar = [start: number, seconds: number, name: number, line: number, kind: number, share?: number];

export interface Lane {
  name: string;
  beside?: string;
  bars: Bar[];
}

// A colour of boxes: of the theme by its name, or #rrggbb.
export interface Kind {
  name: string;
  color: string;
  ink: string;
  seconds?: number;
}

// What a page shows that is not of a compiled program: see src/meshwright/chart/page.py.
export interface Sheet {
  title: string;
  figures: [title: string, value: string, more: string][];
  parts: Part[];
}

// A text, a number, or a text with the number that it is sorted by.
export type Cell = string | number | [text: string, order: number];

export type Part =
  | { part: "timeline"; title: string; seconds: number; inSeconds: boolean; lanes: Lane[]; names: string[]; texts: string[]; kinds: Kind[] }
  | { part: "table"; title: string; columns: string[]; rows: Cell[][] }
  | { part: "text"; title: string; text: string }
  | { part: "picture"; title: string; html: string };

// An equation: its text without types, the number of its line, and what it makes.
export type Equation = [text: string, line: number, values: number[], depth: number];

// A value: its name, type as text, shape, and per dim the axes that split it.
export interface Value {
  name: string;
  type: string;
  shape: number[];
  dims: string[][];
  unreduced: string[];
}

export interface Report {
  title: string;
  machine: string | null;
  mesh: [string, number][];
  seconds: number | null;
  bound: string;
  mfu: number | null;
  hfu: number | null;
  compute_seconds: number;
  communication_seconds: number;
  exposed_seconds: number;
  peak_bytes: number;
  hbm_bytes: number | null;
  argument_bytes: number;
  output_bytes: number;
  temporary_bytes: number;
  received_bytes: number;
  by_axis: [string, number, number][];
  by_kind: [string, number, number][];
  collectives: Collective[];
  rows: Group[];
  cheaper: { text: string; fix: string }[];
  names: string[];
  lines: [place: string, text: string][];
  lanes: Lane[];
  memory: { curve: number[]; peak: { what: string; bytes: number; line: number }[]; line: string | null };
  equations: Equation[];
  values: Value[];
  notes: string[];
}

export function time(seconds: number | null): string {
  if (seconds === null) return "–";
  for (const [unit, scale] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]] as const)
    if (Math.abs(seconds) >= 0.9995 * scale) return `${digits(seconds / scale)} ${unit}`;
  return seconds === 0 ? "0" : `${digits(seconds * 1e9)} ns`;
}

export function size(bytes: number): string {
  for (const [unit, scale] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]] as const)
    if (Math.abs(bytes) >= scale) return `${digits(bytes / scale)} ${unit}`;
  return `${bytes} B`;
}

export function percent(share: number | null): string {
  return share === null ? "–" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
}

function digits(x: number): string {
  return Math.abs(x) >= 999.5 ? x.toFixed(0) : String(Number(x.toPrecision(3)));
}

// The report in the text of a page, or of a file that another page was saved as.
export function parse(text: string): Report[] {
  const inside = /<script type="application\/json" id="report">([\s\S]*?)<\/script>/.exec(text);
  return JSON.parse(inside?.[1] ?? text) as Report[];
}
