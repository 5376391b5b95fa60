// The collectives: sorted by time, each with why it is there and what was tried instead.
import { useMemo } from "preact/hooks";
import { Table, type Column } from "./table";
import { percent, time, type Collective, type Group, type Report } from "./data";

export interface Row extends Group {
  first: Collective;
  times: number;
  received: number; // in all runs
  seconds: number;
  exposed: number | null;
  share: number | null;
}

const total = (amounts: (number | null)[]) =>
  amounts.reduce((sum, one) => (sum === null || one === null ? null : sum + one), 0);

// The rows of the text of `explain`, with what their collectives take in all.
export function rows(report: Report): Row[] {
  return report.rows.map((group) => {
    const all = group.members.map((n) => report.collectives[n]!);
    return {
      ...group,
      first: all[0]!,
      times: all.reduce((n, one) => n + one.times, 0),
      received: all.reduce((n, one) => n + one.bytes * one.times, 0),
      seconds: all.reduce((n, one) => n + one.seconds * one.times, 0),
      exposed: total(all.map((one) => (one.exposed_seconds === null ? null : one.exposed_seconds * one.times))),
      share: total(all.map((one) => one.share)),
    };
  });
}

export function Collectives(props: {
  report: Report;
  chosen: number | null;
  onChoose: (row: number | null) => void;
  onValue: (value: number) => void;
}) {
  const { report, chosen } = props;
  const found = useMemo(() => rows(report), [report]);
  const columns: Column<Row>[] = [
    { title: "time", width: "6em", text: (r) => time(r.seconds), order: (r) => r.seconds, right: true },
    { title: "share", width: "5em", text: (r) => percent(r.share), order: (r) => r.share ?? -1, right: true },
    {
      title: "exposed",
      width: "6em",
      text: (r) => (r.exposed === null ? "–" : time(r.exposed)),
      order: (r) => r.exposed ?? -1,
      right: true,
    },
    { title: "kind", width: "8.5em", text: (r) => r.first.kind },
    { title: "axes", width: "8em", text: (r) => r.first.axes.join(",") },
    { title: "bytes", width: "9em", text: (r) => r.bytes, order: (r) => r.first.bytes, right: true },
    { title: "times", width: "5em", text: (r) => String(r.times), order: (r) => r.times, right: true },
    { title: "pass", width: "7em", text: (r) => r.first.direction },
    { title: "line", width: "13em", text: (r) => r.line },
    { title: "value", width: "minmax(0, 1fr)", text: (r) => r.value },
  ];
  const row = chosen === null ? null : found[chosen];
  return (
    <section aria-labelledby="collectives">
      <h2 id="collectives">Collectives</h2>
      <Table
        label="collectives"
        rows={found}
        columns={columns}
        sorted={0}
        chosen={chosen}
        onChoose={props.onChoose}
        height={330}
        rest={560}
        least={1150}
      />
      <div class="why" aria-live="polite">
        {row ? (
          <Why row={row} onValue={props.onValue} />
        ) : (
          <p class="quiet">
            {found.length ? "Choose a row to see why it is there." : "There are none: no device needs what another has."}
          </p>
        )}
      </div>
      {report.cheaper.length > 0 && (
        <div>
          <h3>Tried, and cheaper</h3>
          <ul>
            {report.cheaper.map((one) => (
              <li>
                {one.text}
                <pre>{one.fix}</pre>
              </li>
            ))}
          </ul>
        </div>
      )}
    </section>
  );
}

function Why({ row, onValue }: { row: Row; onValue: (value: number) => void }) {
  const one = row.first;
  return (
    <div>
      <p>
        <b>
          {one.kind} over {one.axes.join(", ")}
        </b>
        {row.times > 1 ? `, ${row.times} times` : ""}: {row.why}
      </p>
      <dl>
        <dt>value</dt>
        <dd>
          {row.value}{" "}
          {one.var !== null && <button onClick={() => onValue(one.var!)}>show its sharding in the program</button>}
        </dd>
        {row.written.length > 0 && (
          <>
            <dt>axes</dt>
            <dd>{row.written.join("; ")}</dd>
          </>
        )}
        {row.inside.length > 0 && (
          <>
            <dt>inside</dt>
            <dd>{row.inside.join(" / ")}</dd>
          </>
        )}
        <dt>reached by</dt>
        <dd>
          <pre>{one.stack.join("\n")}</pre>
        </dd>
        {one.alternative && (
          <>
            <dt>{one.fix ? "instead" : "next best"}</dt>
            <dd>
              {one.alternative}
              {one.fix && <pre>{one.fix}</pre>}
            </dd>
          </>
        )}
      </dl>
    </div>
  );
}
