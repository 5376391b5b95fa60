// The timeline on a canvas: wheel or keys zoom, dragging moves, hovering says what a box is.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { percent, time, type Bar, type Lane, type Report } from "./data";

const ROW = 34;
const LEFT = 150;
const KINDS = ["compute", "collective", "exposed", "loop"];

function color(kind: number): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${KINDS[kind] ?? "compute"}`);
}

export function Timeline({ report, theme }: { report: Report; theme: string }) {
  const whole = report.seconds ?? 0;
  const [view, setView] = useState<[number, number]>([0, whole]);
  const [over, setOver] = useState<{ bar: Bar; lane: Lane; x: number; y: number } | null>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const drag = useRef<{ x: number; view: [number, number] } | null>(null);
  const lanes = useMemo(
    () => report.lanes.map((lane) => ({ ...lane, bars: [...lane.bars].sort((a, b) => a[0] - b[0]) })),
    [report],
  );
  const height = lanes.length * ROW + 30;
  useEffect(() => setView([0, whole]), [report]);

  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const draw = () => {
      const width = element.clientWidth;
      const scale = window.devicePixelRatio || 1;
      element.width = width * scale;
      element.height = height * scale;
      const context = element.getContext("2d")!;
      context.scale(scale, scale);
      context.clearRect(0, 0, width, height);
      const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink");
      const line = getComputedStyle(document.documentElement).getPropertyValue("--line");
      context.font = "12px system-ui, sans-serif";
      const [from, to] = view;
      const per = (width - LEFT) / (to - from || 1);
      const colors = KINDS.map((_, n) => color(n));
      lanes.forEach((lane, row) => {
        const y = row * ROW;
        context.fillStyle = ink;
        context.textAlign = "left";
        context.fillText(lane.name.length > 22 ? lane.name.slice(0, 21) + "…" : lane.name, 4, y + 21);
        context.save();
        context.beginPath();
        context.rect(LEFT, y, width - LEFT, ROW);
        context.clip();
        let last = -1; // of many boxes within a pixel one is drawn
        for (const [start, seconds, name, , kind] of lane.bars) {
          const x = LEFT + (start - from) * per;
          const end = x + seconds * per;
          if (end < LEFT || x > width || (end - x < 1 && Math.floor(x) === last)) continue;
          last = Math.floor(x);
          context.fillStyle = colors[kind] ?? colors[0]!;
          context.fillRect(x, y + 4, Math.max(1, end - x - (end - x > 3 ? 1 : 0)), ROW - 8);
          if (end - x > 42) {
            context.save();
            context.beginPath();
            context.rect(x, y, end - x - 4, ROW);
            context.clip();
            context.fillStyle = "#fff";
            context.fillText(report.names[name] ?? "", Math.max(x, LEFT) + 4, y + 21);
            context.restore();
          }
        }
        context.restore();
      });
      context.strokeStyle = line;
      context.fillStyle = ink;
      context.beginPath();
      const steps = Math.max(2, Math.floor((width - LEFT) / 110));
      context.textAlign = "center";
      for (let n = 0; n <= steps; n++) {
        const x = LEFT + ((width - LEFT) * n) / steps;
        context.moveTo(x + 0.5, 0);
        context.lineTo(x + 0.5, height - 22);
        context.textAlign = n === steps ? "right" : n ? "center" : "left";
        context.fillText(time(from + ((to - from) * n) / steps), x, height - 6);
      }
      context.stroke();
    };
    draw();
    const watch = new ResizeObserver(draw);
    watch.observe(element);
    return () => watch.disconnect();
  }, [lanes, view, theme]);

  function zoom(factor: number, at = 0.5) {
    setView(([from, to]) => {
      const length = Math.min(whole, Math.max((to - from) * factor, whole * 1e-6));
      const start = Math.min(Math.max(0, from + (to - from - length) * at), whole - length);
      return [start, start + length];
    });
  }

  function shift(by: number) {
    setView(([from, to]) => {
      const start = Math.min(Math.max(0, from + by * (to - from)), whole - (to - from));
      return [start, start + to - from];
    });
  }

  function keys(event: KeyboardEvent) {
    const does: Record<string, () => void> = {
      "+": () => zoom(0.5),
      "=": () => zoom(0.5),
      "-": () => zoom(2),
      ArrowLeft: () => shift(-0.2),
      ArrowRight: () => shift(0.2),
      "0": () => setView([0, whole]),
      Home: () => setView([0, whole]),
    };
    if (!does[event.key]) return;
    event.preventDefault();
    does[event.key]!();
  }

  function point(event: MouseEvent) {
    const box = canvas.current!.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top;
    if (drag.current) {
      const per = (drag.current.view[1] - drag.current.view[0]) / (box.width - LEFT);
      const from = drag.current.view[0] + (drag.current.x - x) * per;
      const length = drag.current.view[1] - drag.current.view[0];
      const start = Math.min(Math.max(0, from), whole - length);
      setView([start, start + length]);
      return;
    }
    const lane = lanes[Math.floor(y / ROW)];
    const at = view[0] + ((x - LEFT) / (box.width - LEFT)) * (view[1] - view[0]);
    const slack = (2 * (view[1] - view[0])) / (box.width - LEFT);
    const bar = lane && x >= LEFT ? lane.bars.find((one) => at >= one[0] - slack && at <= one[0] + one[1] + slack) : null;
    setOver(bar && lane ? { bar, lane, x, y } : null);
  }

  return (
    <section aria-labelledby="timeline">
      <h2 id="timeline">Timeline of one device</h2>
      <div class="tools">
        <button onClick={() => zoom(0.5)} aria-label="Zoom in">+</button>
        <button onClick={() => zoom(2)} aria-label="Zoom out">−</button>
        <button onClick={() => setView([0, whole])}>All</button>
        <span class="quiet" id="shown-time">
          {time(view[0])} to {time(view[1])} of {time(whole)}
        </span>
        <span class="legend">
          <i class="compute" /> compute <i class="collective" /> collective, hidden <i class="exposed" /> collective,
          exposed <i class="loop" /> iterations not shown
        </span>
      </div>
      <div class="canvas">
        <canvas
          ref={canvas}
          tabIndex={0}
          role="img"
          aria-label="Timeline: plus and minus zoom, arrow keys move, 0 shows all"
          style={{ height }}
          onKeyDown={keys}
          onWheel={(event) => {
            event.preventDefault();
            const box = canvas.current!.getBoundingClientRect();
            zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.max(0, (event.clientX - box.left - LEFT) / (box.width - LEFT)));
          }}
          onMouseDown={(event) => {
            drag.current = { x: event.clientX - canvas.current!.getBoundingClientRect().left, view };
            setOver(null);
          }}
          onMouseUp={() => (drag.current = null)}
          onMouseLeave={() => {
            drag.current = null;
            setOver(null);
          }}
          onMouseMove={point}
        />
        {over && (
          <div class="tip" role="tooltip" style={{ left: Math.min(over.x + 12, 700), top: over.y + 14 }}>
            <b>{report.names[over.bar[2]]}</b>
            <div>
              {KINDS[over.bar[4]]}, {time(over.bar[1])}, from {time(over.bar[0])} ({percent(over.bar[1] / whole)} of the
              step)
            </div>
            {over.bar[3] >= 0 && (
              <div class="code">
                {report.lines[over.bar[3]]![0]} {report.lines[over.bar[3]]![1]}
              </div>
            )}
          </div>
        )}
      </div>
    </section>
  );
}
