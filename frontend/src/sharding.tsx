// Which devices hold which block of a value: a grid of blocks for two of its dims, each with its devices.
import { useState } from "preact/hooks";
import type { Report, Value } from "./data";

const MOST = 16; // blocks along a dim that are drawn

function parts(axis: string, sizes: Map<string, number>): number {
  const part = /\((\d+)\)(\d+)$/.exec(axis);
  return part ? Number(part[2]) : (sizes.get(axis) ?? 1);
}

// The number of the block along a dim that a device holds: its coordinates along the axes, as digits.
function block(axes: string[], coordinates: Map<string, number>, sizes: Map<string, number>): number {
  let number = 0;
  for (const axis of axes) {
    const part = /^(.*):\((\d+)\)(\d+)$/.exec(axis);
    const name = part ? part[1]! : axis;
    const whole = sizes.get(name) ?? 1;
    const position = coordinates.get(name) ?? 0;
    const count = part ? Number(part[3]) : whole;
    const before = part ? Number(part[2]) : 1;
    const digit = part ? Math.floor(position / (whole / (before * count))) % count : position;
    number = number * count + digit;
  }
  return number;
}

export function Sharding({ report, value }: { report: Report; value: Value }) {
  const sizes = new Map(report.mesh);
  const counts = value.dims.map((axes) => axes.reduce((n, axis) => n * parts(axis, sizes), 1));
  const split = value.shape.map((_, n) => n).filter((n) => (counts[n] ?? 1) > 1);
  const usual = [...new Set([...split, ...value.shape.map((_, n) => n)])].slice(0, 2).sort((a, b) => a - b);
  const [chosen, setChosen] = useState<number[] | null>(null);
  const dims = chosen && chosen.every((n) => n < value.shape.length) ? chosen : usual;
  const [down, across] = dims.length > 1 ? [dims[0]!, dims[1]!] : [-1, dims[0] ?? -1];
  const devices: number[][] = [];
  const total = report.mesh.reduce((n, [, size]) => n * size, 1);
  const rows = down < 0 ? 1 : (counts[down] ?? 1);
  const columns = across < 0 ? 1 : (counts[across] ?? 1);
  for (let device = 0; device < total; device++) {
    const coordinates = new Map<string, number>();
    let rest = device;
    for (const [name, size] of [...report.mesh].reverse()) {
      coordinates.set(name, rest % size);
      rest = Math.floor(rest / size);
    }
    const row = down < 0 ? 0 : block(value.dims[down] ?? [], coordinates, sizes);
    const column = across < 0 ? 0 : block(value.dims[across] ?? [], coordinates, sizes);
    (devices[row * columns + column] ??= []).push(device);
  }
  const shape = value.shape.map((n, dim) => {
    const axes = value.dims[dim] ?? [];
    return axes.length ? `${n}@${axes.join(",")}` : String(n);
  });
  const local = value.shape.map((n, dim) => Math.ceil(n / (counts[dim] ?? 1)));
  return (
    <figure class="sharding" aria-label={`Sharding of ${value.name}`}>
      <figcaption>
        <b class="code">{value.name}</b> {value.type && <span class="code">[{shape.join(", ")}]</span>}
        {value.unreduced.length > 0 && <span>, partial sums over {value.unreduced.join(", ")}</span>}
        {value.type && <div class="quiet">each device holds [{local.join(", ")}]</div>}
      </figcaption>
      {value.shape.length > 2 && (
        <label class="quiet">
          dims{" "}
          <select
            value={dims.join(",")}
            onChange={(event) => setChosen(event.currentTarget.value.split(",").map(Number))}
          >
            {value.shape.flatMap((_, a) =>
              value.shape.slice(a + 1).map((_, b) => (
                <option value={`${a},${a + 1 + b}`}>
                  {a} and {a + 1 + b}
                </option>
              )),
            )}
          </select>
        </label>
      )}
      <div class="blocks" style={{ gridTemplateColumns: `repeat(${Math.min(columns, MOST)}, minmax(1.7em, 1fr))` }}>
        {Array.from({ length: Math.min(rows, MOST) * Math.min(columns, MOST) }, (_, n) => {
          const row = Math.floor(n / Math.min(columns, MOST));
          const column = n % Math.min(columns, MOST);
          const held = devices[row * columns + column] ?? [];
          const hue = Math.round((360 * (row * columns + column)) / (rows * columns));
          return (
            <div class="block" style={{ "--hue": hue }} title={`devices ${held.join(", ")}`}>
              {held.length > 8 ? `${held.slice(0, 6).join(" ")} … (${held.length})` : held.join(" ")}
            </div>
          );
        })}
      </div>
      {(rows > MOST || columns > MOST) && <p class="quiet">the first {MOST} blocks of each dim</p>}
    </figure>
  );
}

export function Mesh({ report }: { report: Report }) {
  if (!report.mesh.length) return <p class="quiet">one device</p>;
  const axes = report.mesh.map(([name]) => name);
  const across = axes[axes.length - 1]!;
  const value: Value = {
    name: `mesh ${report.mesh.map(([name, size]) => `${name}=${size}`).join(", ")}`,
    type: "",
    shape: [report.mesh.slice(0, -1).reduce((n, [, size]) => n * size, 1), report.mesh[axes.length - 1]![1]],
    dims: [axes.slice(0, -1), [across]],
    unreduced: [],
  };
  return <Sharding report={report} value={value} />;
}
