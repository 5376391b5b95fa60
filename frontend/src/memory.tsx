// Memory kernel by kernel, and what is alive at the peak.
import { useState } from "preact/hooks";
import { useCanvas } from "./canvas";
import { size, type Report } from "./data";

const HEIGHT = 170;

export function Memory({ report, theme }: { report: Report; theme: string }) {
  const [at, setAt] = useState<number | null>(null);
  const { curve, peak } = report.memory;
  const most = curve.reduce((one, other) => Math.max(one, other), 1); // of more than can be arguments
  const canvas = useCanvas(
    HEIGHT,
    (context, width, color) => {
      context.fillStyle = color("compute");
      for (let x = 0; x < width; x++) {
        const from = Math.floor((x * curve.length) / width);
        const to = Math.max(from + 1, Math.floor(((x + 1) * curve.length) / width));
        let value = 0;
        for (let n = from; n < to; n++) value = Math.max(value, curve[n] ?? 0);
        const tall = ((HEIGHT - 24) * value) / most;
        context.fillRect(x, HEIGHT - tall, 1, tall);
      }
      context.fillStyle = color("ink");
      context.fillText(`${size(most)} at the peak`, 4, 14);
    },
    [report, theme],
  );
  return (
    <section aria-labelledby="memory">
      <h2 id="memory">Memory of one device, kernel by kernel</h2>
      <canvas
        ref={canvas}
        role="img"
        aria-label={`Memory over the step: ${size(most)} at the peak`}
        style={{ height: HEIGHT }}
        onMouseMove={(event) =>
          setAt(Math.floor((event.offsetX / Math.max(1, canvas.current!.clientWidth)) * curve.length))
        }
        onMouseLeave={() => setAt(null)}
      />
      <p class="quiet">
        {at !== null && curve[at] !== undefined
          ? `kernel ${at + 1} of ${curve.length}: ${size(curve[at]!)}`
          : `arguments ${size(report.argument_bytes)}, results ${size(report.output_bytes)}, other values up to ` +
            `${size(report.temporary_bytes)}${report.memory.line ? `; the peak is at ${report.memory.line}` : ""}`}
      </p>
      <table class="plain">
        <caption>Alive at the peak</caption>
        <thead>
          <tr>
            <th scope="col">bytes</th>
            <th scope="col">value</th>
            <th scope="col">line</th>
          </tr>
        </thead>
        <tbody>
          {peak.slice(0, 12).map((one) => (
            <tr>
              <td class="right">{size(one.bytes)}</td>
              <td>{one.what}</td>
              <td class="code">{one.line >= 0 ? `${report.lines[one.line]![0]}  ${report.lines[one.line]![1]}` : ""}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {peak.length > 12 && (
        <p class="quiet">
          and {size(peak.slice(12).reduce((sum, one) => sum + one.bytes, 0))} in {peak.length - 12} more rows
        </p>
      )}
    </section>
  );
}
