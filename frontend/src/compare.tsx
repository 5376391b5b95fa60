// Two reports side by side: their figures, and which collectives appeared, went or changed.
import { useMemo } from "preact/hooks";
import { nameOf, rows, type Row } from "./collectives";
import { percent, size, time, type Report } from "./data";
import { Table, type Column } from "./table";

interface Change {
  before: Row | null;
  after: Row | null;
}

// The same line is the same text in the same function, wherever in the file that now is.
const place = (row: Row) =>
  [
    row.first.kind,
    row.first.axes,
    row.first.direction,
    (row.first.stack[0] ?? "").replace(/^\S+ /, "").replace(/ {3}\(in .*$/, ""),
    row.first.scopes.join("/").replace(/\d+/g, "*"),
    nameOf(row.first.value).replace(/\d+/g, "*"),
  ].join("|");

export function Compare({ reports }: { reports: [Report, Report] }) {
  const [one, other] = reports;
  const changes = useMemo(() => {
    const found = new Map<string, Change>();
    for (const row of rows(one.collectives)) found.set(place(row), { before: row, after: null });
    for (const row of rows(other.collectives)) {
      const known = found.get(place(row));
      if (known) known.after = row;
      else found.set(place(row), { before: null, after: row });
    }
    return [...found.values()].filter(
      ({ before, after }) => before?.times !== after?.times || before?.first.bytes !== after?.first.bytes,
    );
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
  const columns: Column<Change>[] = [
    { title: "what", width: "6em", text: what },
    { title: "difference", width: "8em", text: (c) => (gain(c) > 0 ? "+" : "") + time(gain(c)), order: (c) => Math.abs(gain(c)), right: true },
    { title: "kind", width: "9em", text: (c) => (c.before ?? c.after)!.first.kind },
    { title: "axes", width: "8em", text: (c) => (c.before ?? c.after)!.first.axes.join(",") },
    { title: "before", width: "10em", text: (c) => (c.before ? `${c.before.times} × ${size(c.before.first.bytes)}` : "–"), right: true },
    { title: "after", width: "10em", text: (c) => (c.after ? `${c.after.times} × ${size(c.after.first.bytes)}` : "–"), right: true },
    { title: "line", width: "13em", text: (c) => (c.after ?? c.before)!.first.line ?? "" },
    { title: "why", width: "minmax(0, 1fr)", text: (c) => (c.after ?? c.before)!.first.why },
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
      <Table label="collectives that differ" rows={changes} columns={columns} sorted={1} height={360} />
    </section>
  );
}
