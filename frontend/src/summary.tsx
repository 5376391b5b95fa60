// The first glance: how long a step takes and what bounds it, memory, bytes by axis and kind.
import { Cards } from "./cards";
import { percent, size, time, type Report } from "./data";
import { Mesh } from "./sharding";

export function Summary({ report }: { report: Report }) {
  const cards: [string, string, string][] = [
    ["a step", time(report.seconds), report.bound],
    ["exposed", time(report.exposed_seconds), `of ${time(report.communication_seconds)} of collectives`],
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
          <div class="pair">
            <Shares title="by axis" rows={report.by_axis} />
            <Shares title="by kind" rows={report.by_kind} />
          </div>
          {report.notes.map((note) => (
            <p class="quiet">note: {note}</p>
          ))}
        </div>
        <aside>
          <Mesh report={report} />
        </aside>
      </div>
    </section>
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
