// Two reports side by side: their figures, and which collectives appeared, went or changed.
import { useMemo, useState } from "preact/hooks";
import { rows, type Row } from "./collectives";
import { percent, size, time, type Report } from "./data";
import { Table, type Column } from "./table";
import { Timeline, trackOf } from "./timeline";

// What there is of a place in one report, and one of its rows.
interface Side {
  row: Row;
  times: number;
  received: number;
  seconds: number;
}

interface Change {
  before: Side | null;
  after: Side | null;
}

// What a value is called, without the type that comes after it, whose sizes may be what changed.
const TYPE = / ~?(?:bf16|[cf]\d+\w*|[iu]\d+|bool)\[[\d,]*\](?:, …)?$/;
const nameOf = (value: string) => value.replace(TYPE, "");

// Those that values of several lines were combined into are the same. Of others the same line is the same text in the
// same function, wherever in the file that now is.
function place(row: Row): string {
  const { kind, axes, direction, values, stack, scopes, value } = row.first;
  const text = (stack[0] ?? "").replace(/^\S+ /, "").replace(/ {3}\(in .*$/, "");
  const rest = values > 1 ? ["combined"] : [text, scopes.join("/"), nameOf(value)].map((one) => one.replace(/\d+/g, "*"));
  return [kind, axes, direction, ...rest].join("|");
}

function sides(report: Report): Map<string, Side> {
  const found = new Map<string, Side>();
  for (const row of rows(report)) {
    const known = found.get(place(row));
    const { times, received, seconds } = known ?? { times: 0, received: 0, seconds: 0 };
    found.set(place(row), {
      row: known?.row ?? row,
      times: times + row.times,
      received: received + row.received,
      seconds: seconds + row.seconds,
    });
  }
  return found;
}

export function Compare({ reports, theme }: { reports: [Report, Report]; theme: string }) {
  const [one, other] = reports;
  const changes = useMemo(() => {
    const [was, now] = [sides(one), sides(other)];
    return [...new Set([...was.keys(), ...now.keys()])]
      .map((key): Change => ({ before: was.get(key) ?? null, after: now.get(key) ?? null }))
      .filter(({ before, after }) => before?.times !== after?.times || before?.received !== after?.received);
  }, reports);
  const figures: [string, string, string][] = [
    ["machine", one.machine ?? "–", other.machine ?? "–"],
    ["a step", time(one.seconds), time(other.seconds)],
    ["bound", one.bound, other.bound],
    ["MFU", percent(one.mfu), percent(other.mfu)],
    ["exposed", time(one.exposed_seconds), time(other.exposed_seconds)],
    ["memory", size(one.peak_bytes), size(other.peak_bytes)],
    ["received", size(one.received_bytes), size(other.received_bytes)],
  ];
  const what = ({ before, after }: Change) => (!before ? "appeared" : !after ? "went" : "changed");
  const gain = ({ before, after }: Change) => (after?.seconds ?? 0) - (before?.seconds ?? 0);
  const amount = (side: Side) => `${side.times} ×, ${size(side.received)}`;
  const [chosen, setChosen] = useState<number | null>(null);
  const about = chosen === null ? undefined : changes[chosen];
  const shown = about && (about.after ?? about.before)!.row;
  const tracks = useMemo(() => {
    const both = reports.map((report) => ({ ...trackOf(report), title: report.title }));
    const longest = Math.max(...both.map((track) => track.seconds));
    return both.map((track) => ({ ...track, seconds: longest }));
  }, reports);
  const columns: Column<Change>[] = [
    { title: "what", width: "6em", text: what },
    { title: "difference", width: "9em", text: (c) => (gain(c) > 0 ? "+" : "") + time(gain(c)).replace("-", "−"), order: (c) => Math.abs(gain(c)), right: true },
    { title: "kind", width: "9em", text: (c) => (c.before ?? c.after)!.row.first.kind },
    { title: "axes", width: "8em", text: (c) => (c.before ?? c.after)!.row.first.axes.join(",") },
    { title: "before", width: "12em", text: (c) => (c.before ? amount(c.before) : "–"), right: true },
    { title: "after", width: "12em", text: (c) => (c.after ? amount(c.after) : "–"), right: true },
    { title: "line", width: "13em", text: (c) => (c.after ?? c.before)!.row.line },
    { title: "why", width: "minmax(0, 1fr)", text: (c) => (c.after ?? c.before)!.row.why },
  ];
  return (
    <section aria-labelledby="compare">
      <h2 id="compare">
        {one.title} and {other.title}
      </h2>
      <table class="plain figures">
        <thead>
          <tr>
            <td />
            <th scope="col">{one.title}</th>
            <th scope="col">{other.title}</th>
          </tr>
        </thead>
        <tbody>
          {figures.map(([name, before, after]) => (
            <tr>
              <th scope="row">{name}</th>
              <td>{before}</td>
              <td class={before === after ? "" : "changed"}>{after}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <h3>Collectives that differ</h3>
      {changes.length > 0 ? (
        <Table
          label="collectives that differ"
          rows={changes}
          columns={columns}
          sorted={1}
          chosen={chosen}
          onChoose={setChosen}
          height={270}
          least={1150}
        />
      ) : (
        <p class="quiet">None: both send the same.</p>
      )}
      {shown && (
        <div class="why" aria-live="polite">
          <b>{shown.value}</b>: {[shown.why, ...shown.written].join("; ")}
          <pre>{shown.first.stack.join("\n")}</pre>
        </div>
      )}
      {tracks.map((track, n) => track.lanes.length > 0 && <Timeline track={track} theme={theme} name={`timeline-${n}`} />)}
    </section>
  );
}
