// The program, each equation beside the user's line that it comes from, and the sharding of the value that is chosen.
import { Table, type Column } from "./table";
import { Sharding } from "./sharding";
import type { Equation, Report } from "./data";

export function Program(props: { report: Report; chosen: number | null; onChoose: (equation: number) => void }) {
  const { report } = props;
  const columns: Column<Equation>[] = [
    {
      title: "value and its sharding",
      width: "minmax(0, 2.2fr)",
      text: ([, , values, depth]) =>
        "  ".repeat(depth) + values.map((n) => `${report.values[n]!.name}: ${report.values[n]!.type}`).join(", "),
    },
    { title: "equation", width: "minmax(0, 1.1fr)", text: ([text]) => text },
    { title: "line", width: "10em", text: ([, line]) => report.lines[line]?.[0] ?? "" },
    { title: "your code", width: "minmax(0, 1.1fr)", text: ([, line]) => report.lines[line]?.[1] ?? "" },
  ];
  const equation = props.chosen === null ? null : report.equations[props.chosen];
  return (
    <section aria-labelledby="program">
      <h2 id="program">The program before it is partitioned, with its shardings</h2>
      <div class="beside">
        <div class="code wide">
          <Table
            label="equations"
            rows={report.equations}
            columns={columns}
            chosen={props.chosen}
            onChoose={props.onChoose}
            height={440}
            rest={230}
          />
        </div>
        <aside aria-live="polite">
          {equation ? (
            equation[2].map((n) => <Sharding key={n} report={report} value={report.values[n]!} />)
          ) : (
            <p class="quiet">Choose an equation to see which device holds which block of its value.</p>
          )}
        </aside>
      </div>
    </section>
  );
}
