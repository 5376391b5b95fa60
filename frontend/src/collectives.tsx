// The collectives: sorted by time, each with why it is there and what was tried instead.
import { useMemo, useState } from "preact/hooks";
import { Table, type Column } from "./table";
import { percent, size, time, type Collective, type Report } from "./data";

export interface Row {
  first: Collective;
  count: number;
  times: number;
  seconds: number;
  exposed: number | null;
  share: number | null;
}

const general = (text: string) => text.replace(/\d+/g, "*");
// What a value is called, without the type that comes after it.
const TYPE = / ~?(?:bf16|[cf]\d+\w*|[iu]\d+|bool)\[[\d,]*\](?:, …)?$/;
export const nameOf = (value: string) => value.replace(TYPE, "");

// Those of equal layers are one row, as in the text of `explain`.
export function rows(collectives: Collective[]): Row[] {
  const found = new Map<string, Row>();
  for (const one of collectives) {
    const name = nameOf(one.value);
    const key = [one.kind, one.axes, one.bytes, one.why, one.stack[0], one.direction, one.scopes.map(general), general(name)].join("|");
    const row = found.get(key);
    const exposed = one.exposed_seconds === null ? null : one.exposed_seconds * one.times;
    if (!row)
      found.set(key, { first: one, count: 1, times: one.times, seconds: one.seconds * one.times, exposed, share: one.share });
    else {
      row.count += 1;
      row.times += one.times;
      row.seconds += one.seconds * one.times;
      row.exposed = row.exposed === null || exposed === null ? null : row.exposed + exposed;
      row.share = row.share === null || one.share === null ? null : row.share + one.share;
    }
  }
  return [...found.values()];
}

export function Collectives(props: { report: Report; onValue: (value: number) => void }) {
  const { report } = props;
  const found = useMemo(() => rows(report.collectives), [report]);
  const [chosen, setChosen] = useState<number | null>(null);
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
    { title: "bytes", width: "6em", text: (r) => size(r.first.bytes), order: (r) => r.first.bytes, right: true },
    { title: "times", width: "5em", text: (r) => String(r.times), order: (r) => r.times, right: true },
    { title: "pass", width: "7em", text: (r) => r.first.direction },
    { title: "line", width: "13em", text: (r) => r.first.line ?? "" },
    {
      title: "value",
      width: "minmax(0, 1fr)",
      text: ({ count, first: { value } }) =>
        count > 1 ? general(nameOf(value)) + value.slice(nameOf(value).length) : value,
    },
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
        onChoose={setChosen}
        height={330}
      />
      <div class="why" aria-live="polite">
        {row ? <Why row={row} onValue={props.onValue} /> : <p class="quiet">Choose a row to see why it is there.</p>}
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
        {row.times > 1 ? `, ${row.times} times` : ""}: {one.why}
      </p>
      <dl>
        <dt>value</dt>
        <dd>
          {one.value}{" "}
          {one.var !== null && <button onClick={() => onValue(one.var!)}>show its sharding in the program</button>}
        </dd>
        {one.scopes.length > 0 && (
          <>
            <dt>inside</dt>
            <dd>{one.scopes.join(" / ")}</dd>
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
