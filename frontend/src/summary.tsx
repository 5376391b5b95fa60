// The first glance: how long a step takes and what bounds it, memory, bytes by axis and kind.
import { Cards } from "./cards";
import { rows } from "./collectives";
import { percent, size, time, type Report } from "./data";
import { Mesh } from "./sharding";

const LONGEST = 5;

export function Summary({ report, onRow }: { report: Report; onRow: (row: number) => void }) {
  const cards: [string, string, string][] = [
    ["a step", time(report.seconds), report.bound],
    ["exposed", time(report.exposed_seconds), report.collectives.length ? `of ${time(report.communication_seconds)} of collectives` : "no collectives"],
    ["MFU", percent(report.mfu), report.hfu !== report.mfu ? `HFU ${percent(report.hfu)}` : `compute ${time(report.compute_seconds)}`],
    [
      "memory",
      size(report.peak_bytes),
      report.hbm_bytes ? `of ${size(report.hbm_bytes)}${report.peak_bytes > report.hbm_bytes ? ": does not fit" : ""}` : "",
    ],
    ["received", size(report.received_bytes), "per device and step"],
  ];
  return (
    <section aria-label="Summary">
      <Cards cards={cards} />
      <div class="beside">
        <div class="wide">
          {report.collectives.length ? (
            <div class="pair">
              <Shares title="by axis" rows={report.by_axis} />
              <Shares title="by kind" rows={report.by_kind} />
            </div>
          ) : (
            <p>No collectives: no device needs what another has.</p>
          )}
          {report.notes.map((note) => (
            <p class="quiet">note: {note}</p>
          ))}
        </div>
        <aside>
          <Mesh report={report} />
        </aside>
      </div>
      <Longest report={report} onRow={onRow} />
    </section>
  );
}

// The collectives that take longest, and the change that saves most: what to look at first.
function Longest({ report, onRow }: { report: Report; onRow: (row: number) => void }) {
  const found = rows(report);
  const [first] = report.cheaper;
  if (!found.length) return null;
  return (
    <>
      <table class="plain longest">
        <caption>Collectives that take longest</caption>
        <tbody>
          {found.slice(0, LONGEST).map((row, n) => (
            <tr>
              <td class="right">{time(row.seconds)}</td>
              <td class="right">{percent(row.share)}</td>
              <td>
                {row.first.kind} over {row.first.axes.join(", ")}
                {row.times > 1 ? `, ${row.times} ×` : ""}
              </td>
              <td>{row.line}</td>
              <td>{row.inside.join(" / ") || row.value}</td>
              <td>
                <button aria-label={`why ${row.first.kind} at ${row.line}`} onClick={() => onRow(n)}>
                  why
                </button>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {first && (
        <div>
          <b>Cheaper:</b> {first.text}
          <pre>{first.fix}</pre>
        </div>
      )}
    </>
  );
}

function Shares({ title, rows }: { title: string; rows: [string, number, number][] }) {
  const most = Math.max(...rows.map(([, , seconds]) => seconds), 1e-30);
  return (
    <table class="plain">
      <caption>Collectives {title}</caption>
      <tbody>
        {rows.map(([name, bytes, seconds]) => (
          <tr>
            <th scope="row">{name}</th>
            <td class="right">{size(bytes)}</td>
            <td class="right">{time(seconds)}</td>
            <td class="meter">
              <i style={{ width: `${(100 * seconds) / most}%` }} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
