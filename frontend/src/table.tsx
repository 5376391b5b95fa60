// A table that sorts and filters; of many rows only those in view are in the document.
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

export interface Column<Row> {
  title: string;
  width: string;
  text: (row: Row) => string;
  order?: (row: Row) => number;
  show?: (row: Row) => ComponentChildren;
  right?: boolean;
}

const HEIGHT = 26;

export function Table<Row>(props: {
  label: string;
  rows: Row[];
  columns: Column<Row>[];
  chosen?: number | null;
  onChoose?: (index: number) => void;
  sorted?: number;
  height: number; // at least
  rest?: number; // of the window, which the table leaves to others
  least?: number; // of pixels that it is wide
  filter?: boolean;
}) {
  const height = Math.max(props.height, props.rest === undefined ? 0 : window.innerHeight - props.rest);
  const { rows, columns } = props;
  const [sort, setSort] = useState<[number, boolean] | null>(props.sorted === undefined ? null : [props.sorted, true]);
  const [wanted, setWanted] = useState("");
  const [top, setTop] = useState(0);
  const box = useRef<HTMLDivElement>(null);
  const texts = useMemo(
    () => rows.map((row) => columns.map((one) => one.text(row)).join(" ").toLowerCase()),
    [rows],
  );
  const order = useMemo(() => {
    const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.map((_, n) => n).filter((n) => words.every((word) => texts[n]!.includes(word)));
    if (sort) {
      const column = columns[sort[0]]!;
      const sign = sort[1] ? -1 : 1;
      const key = column.order;
      found.sort((a, b) =>
        key
          ? sign * (key(rows[a]!) - key(rows[b]!)) || a - b
          : sign * column.text(rows[a]!).localeCompare(column.text(rows[b]!)) || a - b,
      );
    }
    return found;
  }, [rows, sort, wanted]);
  const first = Math.max(0, Math.floor(top / HEIGHT) - 8);
  const shown = order.slice(first, first + Math.ceil(height / HEIGHT) + 16);
  const place = props.chosen == null ? -1 : order.indexOf(props.chosen);

  useEffect(() => {
    const element = box.current;
    if (!element || place < 0) return;
    const at = place * HEIGHT;
    if (at < element.scrollTop || at > element.scrollTop + height - 2 * HEIGHT)
      element.scrollTop = Math.max(0, at - height / 2);
  }, [props.chosen]);

  function move(event: KeyboardEvent) {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -1e9, End: 1e9 }[event.key];
    if (by === undefined || !props.onChoose || !order.length) return;
    event.preventDefault();
    const next = Math.min(order.length - 1, Math.max(0, (place < 0 ? (by > 0 ? -1 : 0) : place) + by));
    props.onChoose(order[next]!);
  }

  const grid = { gridTemplateColumns: columns.map((one) => one.width).join(" ") };
  return (
    <div class="table">
      {props.filter !== false && (
        <label class="filter">
          <span>Filter</span>
          <input
            type="search"
            value={wanted}
            placeholder="words that a row has to have"
            aria-label={`Filter ${props.label}`}
            onInput={(event) => setWanted(event.currentTarget.value)}
          />
          <span class="quiet" role="status">
            {order.length === rows.length ? `${rows.length} rows` : `${order.length} of ${rows.length} rows`}
          </span>
        </label>
      )}
      <div class="sheet" style={{ "--least": `${props.least ?? 900}px` }} role="grid" aria-label={props.label} aria-rowcount={order.length + 1}>
        <div class="head row" role="row" style={grid}>
          {columns.map((one, n) => (
            <button
              role="columnheader"
              class={one.right ? "right" : ""}
              aria-sort={sort?.[0] === n ? (sort[1] ? "descending" : "ascending") : "none"}
              onClick={() => setSort(sort?.[0] === n ? [n, !sort[1]] : [n, one.order !== undefined])}
            >
              {one.title}
              {sort?.[0] === n ? (sort[1] ? " ↓" : " ↑") : ""}
            </button>
          ))}
        </div>
        <div
          ref={box}
          class="body"
          tabIndex={0}
          style={{ height: Math.min(height, Math.max(1, order.length) * HEIGHT + 2) }}
          onScroll={(event) => setTop(event.currentTarget.scrollTop)}
          onKeyDown={move}
        >
          <div style={{ height: order.length * HEIGHT, position: "relative" }}>
            {shown.map((n, place) => (
              <div
                key={n}
                role="row"
                aria-selected={n === props.chosen}
                aria-rowindex={first + place + 2}
                class={`row${n === props.chosen ? " chosen" : ""}`}
                style={{ ...grid, top: (first + place) * HEIGHT, position: "absolute", height: HEIGHT }}
                onClick={() => props.onChoose?.(n)}
              >
                {columns.map((one) => (
                  <div role="gridcell" class={one.right ? "right" : ""} title={one.text(rows[n]!)}>
                    {one.show ? one.show(rows[n]!) : one.text(rows[n]!)}
                  </div>
                ))}
              </div>
            ))}
          </div>
        </div>
      </div>
    </div>
  );
}
