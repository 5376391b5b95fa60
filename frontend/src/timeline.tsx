// The timeline on a canvas: wheel or keys zoom, dragging moves, hovering says what a box is.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useCanvas } from "./canvas";
import { percent, time, type Bar, type Kind, type Lane, type Report } from "./data";

const LEFT = 150;
const MOST_LEFT = 300;

// What is busy when: of a report, or of anything else that has a chart.
export interface Track {
  title: string;
  seconds: number;
  inSeconds: boolean;
  lanes: Lane[];
  names: string[];
  texts: string[]; // that bars say where the pointer rests
  kinds: Kind[];
}

const KINDS: Kind[] = [
  { name: "compute", color: "compute", ink: "#fff" },
  { name: "collective, hidden", color: "collective", ink: "#fff" },
  { name: "collective, exposed", color: "exposed", ink: "#fff" },
  { name: "iterations not shown", color: "loop", ink: "#fff" },
];

// Where times stand below the lanes: at round ones, at most so many; of steps at whole ones.
function ticks(from: number, to: number, most: number, inSeconds: boolean): number[] {
  const least = (to - from) / most || 1;
  const power = 10 ** Math.floor(Math.log10(least) + 1e-9);
  const round = [1, 2, 5, 10].map((n) => n * power).find((by) => by >= least * (1 - 1e-9))!;
  const by = inSeconds ? round : Math.max(1, Math.round(round));
  const first = Math.ceil(from / by - 1e-9);
  return Array.from({ length: most + 2 }, (_, n) => (first + n) * by).filter((one) => one <= to + 1e-9 * by);
}

export function trackOf(report: Report): Track {
  const texts = report.lines.map(([place, text]) => `${place} ${text}`);
  const { lanes, names } = report;
  return { title: "Timeline of one device", seconds: report.seconds ?? 0, inSeconds: true, lanes, names, texts, kinds: KINDS };
}

export function Timeline({ track, theme, name = "timeline" }: { track: Track; theme: string; name?: string }) {
  const whole = track.seconds;
  const at = (seconds: number) => (track.inSeconds ? time(seconds) : String(Number(seconds.toPrecision(4))));
  const [view, setView] = useState<[number, number]>([0, whole]);
  const [over, setOver] = useState<{ bar: Bar; lane: Lane; x: number; y: number } | null>(null);
  const drag = useRef<{ x: number; view: [number, number] } | null>(null);
  const lanes = useMemo(
    () => track.lanes.map((lane) => ({ ...lane, bars: [...lane.bars].sort((a, b) => a[0] - b[0]) })),
    [track],
  );
  const row = lanes.length > 12 ? 22 : 34;
  const label = (lane: Lane) => (lane.beside ? `${lane.name}  ${lane.beside}` : lane.name);
  const left = Math.min(MOST_LEFT, Math.max(LEFT, ...lanes.map((lane) => 7 * label(lane).length)));
  const height = lanes.length * row + 30;
  useEffect(() => setView([0, whole]), [track]);
  const canvas = useCanvas(
    height,
    (context, width, color) => {
      const [from, to] = view;
      const per = (width - left) / (to - from || 1);
      const colors = track.kinds.map((kind) => (kind.color.startsWith("#") ? kind.color : color(kind.color)));
      const most = Math.floor(left / 6.8);
      context.strokeStyle = color("line");
      context.fillStyle = color("ink");
      context.beginPath();
      const marks = ticks(from, to, Math.max(2, Math.floor((width - left) / 110)), track.inSeconds);
      for (const mark of marks) {
        const x = left + (mark - from) * per;
        context.moveTo(x + 0.5, 0);
        context.lineTo(x + 0.5, height - 22);
        context.textAlign = x > width - 30 ? "right" : x > left + 10 ? "center" : "left";
        context.fillText(at(mark), x, height - 6);
      }
      context.stroke();
      lanes.forEach((lane, n) => {
        const y = n * row;
        const text = label(lane);
        context.fillStyle = color("ink");
        context.textAlign = "left";
        context.fillText(text.length > most ? text.slice(0, most - 1) + "…" : text, 4, y + row / 2 + 4);
        context.save();
        context.beginPath();
        context.rect(left, y, width - left, row);
        context.clip();
        let last = -1; // of many boxes within a pixel one is drawn
        for (const [start, seconds, name, , kind, share] of lane.bars) {
          const x = left + (start - from) * per;
          const end = x + seconds * per;
          if (end < left || x > width || (end - x < 1 && Math.floor(x) === last)) continue;
          last = Math.floor(x);
          context.fillStyle = colors[kind] ?? colors[0]!;
          context.globalAlpha = share ?? 1;
          context.fillRect(x, y + row / 8, Math.max(1, end - x - (end - x > 3 ? 1 : 0)), row - row / 4);
          context.globalAlpha = 1;
          if (end - x > 42) {
            context.save();
            context.beginPath();
            context.rect(x, y, end - x - 4, row);
            context.clip();
            context.fillStyle = (share ?? 1) < 0.5 ? color("ink") : track.kinds[kind]!.ink;
            context.fillText(track.names[name] ?? "", Math.max(x, left) + 4, y + row / 2 + 4);
            context.restore();
          }
        }
        context.restore();
      });
    },
    [lanes, view, theme],
  );

  function zoom(factor: number, around = 0.5) {
    setView(([from, to]) => {
      const length = Math.min(whole, Math.max((to - from) * factor, whole * 1e-6));
      const start = Math.min(Math.max(0, from + (to - from - length) * around), whole - length);
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
      const per = (drag.current.view[1] - drag.current.view[0]) / (box.width - left);
      const from = drag.current.view[0] + (drag.current.x - x) * per;
      const length = drag.current.view[1] - drag.current.view[0];
      const start = Math.min(Math.max(0, from), whole - length);
      setView([start, start + length]);
      return;
    }
    const lane = lanes[Math.floor(y / row)];
    const moment = view[0] + ((x - left) / (box.width - left)) * (view[1] - view[0]);
    const slack = (2 * (view[1] - view[0])) / (box.width - left);
    const bar = lane && x >= left ? lane.bars.find((one) => moment >= one[0] - slack && moment <= one[0] + one[1] + slack) : null;
    setOver(bar && lane ? { bar, lane, x, y } : null);
  }

  return (
    <section aria-labelledby={name}>
      <h2 id={name}>{track.title}</h2>
      <div class="tools">
        <button onClick={() => zoom(0.5)} aria-label="Zoom in">+</button>
        <button onClick={() => zoom(2)} aria-label="Zoom out">−</button>
        <button onClick={() => setView([0, whole])}>All</button>
        <span class="quiet" id={name === "timeline" ? "shown-time" : `${name}-shown`}>
          {at(view[0])} to {at(view[1])} of {at(whole)}
        </span>
        <span class="legend">
          {track.kinds.map((kind) => (
            <>
              <i style={{ background: kind.color.startsWith("#") ? kind.color : `var(--${kind.color})` }} /> {kind.name}
              {kind.seconds === undefined ? "" : ` ${at(kind.seconds)}`}{" "}
            </>
          ))}
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
            zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.max(0, (event.clientX - box.left - left) / (box.width - left)));
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
            <b>{track.names[over.bar[2]]}</b>
            <div>
              {track.kinds[over.bar[4]]!.name}, {at(over.bar[1])}, from {at(over.bar[0])} ({percent(over.bar[1] / whole)} of
              the {track.inSeconds ? "step" : "whole"}){over.bar[5] ? `, busy for ${percent(over.bar[5])} of it` : ""}
            </div>
            {over.bar[3] >= 0 && <div class="code">{track.texts[over.bar[3]]}</div>}
          </div>
        )}
      </div>
    </section>
  );
}
