// A page of charts, tables and pictures: of device programs, kernels, schedules, searches.
import { useMemo, useState } from "preact/hooks";
import { Cards } from "./cards";
import type { Cell, Part, Sheet } from "./data";
import { Table, type Column } from "./table";
import { useTheme } from "./theme";
import { Timeline } from "./timeline";

export function SheetPage({ sheet }: { sheet: Sheet }) {
  const [theme, button] = useTheme();
  return (
    <>
      <header>
        <h1>{sheet.title}</h1>
        {button}
      </header>
      <main>
        {sheet.figures.length > 0 && <Cards cards={sheet.figures} />}
        {sheet.parts.map((part) => (
          <Shown part={part} theme={theme} />
        ))}
      </main>
    </>
  );
}

function Shown({ part, theme }: { part: Part; theme: string }) {
  if (part.part === "timeline") return <Timeline track={part} theme={theme} />;
  return (
    <section aria-label={part.title}>
      {part.title && <h2>{part.title}</h2>}
      {part.part === "table" && <Rows title={part.title} heads={part.columns} rows={part.rows} />}
      {part.part === "text" && <pre>{part.text}</pre>}
      {part.part === "picture" && <div class="picture" dangerouslySetInnerHTML={{ __html: part.html }} />}
    </section>
  );
}

function Rows({ title, heads, rows }: { title: string; heads: string[]; rows: Cell[][] }) {
  const [chosen, setChosen] = useState<number | null>(null);
  const columns = useMemo(
    () =>
      heads.map((head, n): Column<Cell[]> => {
        const numbers = rows.length > 0 && rows.every((row) => typeof row[n] !== "string");
        const text = (row: Cell[]) => String(Array.isArray(row[n]) ? row[n][0] : row[n]);
        const order = (row: Cell[]) => Number(Array.isArray(row[n]) ? row[n][1] : row[n]);
        const widest = rows.reduce((most, row) => Math.max(most, text(row).length), head.length + 2);
        const least = `${Math.min(widest, 40) + 3}ch`;
        const width = numbers || n < heads.length - 1 ? least : `minmax(${least}, auto)`;
        return numbers
          ? { title: head, width, text, order, right: true }
          : { title: head, width, text };
      }),
    [rows],
  );
  return <Table label={title} rows={rows} columns={columns} chosen={chosen} onChoose={setChosen} height={420} />;
}
