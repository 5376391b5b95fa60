import { render } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { Collectives } from "./collectives";
import { Compare } from "./compare";
import { parse, type Report, type Sheet } from "./data";
import { Memory } from "./memory";
import { Program } from "./program";
import { Summary } from "./summary";
import { SheetPage } from "./sheet";
import { useTheme } from "./theme";
import { Timeline, trackOf } from "./timeline";

const TABS = ["overview", "collectives", "timeline", "memory", "program", "compare"] as const;
type Tab = (typeof TABS)[number];

function Page({ given }: { given: Report[] }) {
  const [reports, setReports] = useState(given);
  const [at, setAt] = useState(0);
  const [tab, setTab] = useState<Tab>(() => (TABS.find((one) => `#${one}` === location.hash) ?? "overview"));
  const [theme, button] = useTheme();
  const [row, setRow] = useState<number | null>(null);
  const [equation, setEquation] = useState<number | null>(null);
  const [failed, setFailed] = useState("");
  useEffect(() => history.replaceState(null, "", `#${tab}`), [tab]);
  const report = reports[at]!;
  const track = useMemo(() => trackOf(report), [report]);

  function keys(event: KeyboardEvent) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const next = TABS[(TABS.indexOf(tab) + by + TABS.length) % TABS.length]!;
    setTab(next);
    document.getElementById(`tab-${next}`)?.focus();
  }

  async function load(file: File | undefined) {
    if (!file) return;
    try {
      const found = parse(await file.text());
      if (!found[0]?.collectives) throw new Error("it is no report");
      setReports([reports[0]!, { ...found[0], title: `${found[0].title} (${file.name})` }]);
      setFailed("");
    } catch (error) {
      setFailed(`${file.name} cannot be read: ${error instanceof Error ? error.message : error}`);
    }
  }

  return (
    <>
      <header>
        <h1>
          {report.title} <span class="quiet">{report.machine ? `on ${report.machine}` : ""}</span>
        </h1>
        {reports.length > 1 && (
          <label>
            report{" "}
            <select
              value={at}
              onChange={(event) => {
                setAt(Number(event.currentTarget.value));
                setRow(null);
                setEquation(null);
              }}
              id="which"
            >
              {reports.map((one, n) => (
                <option value={n}>{one.title}</option>
              ))}
            </select>
          </label>
        )}
        {button}
      </header>
      <nav role="tablist" aria-label="Parts of the report" onKeyDown={keys}>
        {TABS.map((one) => (
          <button
            role="tab"
            id={`tab-${one}`}
            aria-selected={tab === one}
            aria-controls="part"
            tabIndex={tab === one ? 0 : -1}
            onClick={() => setTab(one)}
          >
            {one}
          </button>
        ))}
      </nav>
      <main id="part" role="tabpanel" aria-labelledby={`tab-${tab}`}>
        {tab === "overview" && (
          <>
            <Summary
              report={report}
              onRow={(one) => {
                setRow(one);
                setTab("collectives");
              }}
            />
            <Timeline track={track} theme={theme} />
          </>
        )}
        {tab === "collectives" && (
          <Collectives
            report={report}
            chosen={row}
            onChoose={setRow}
            onValue={(value) => {
              setEquation(report.equations.findIndex((one) => one[2].includes(value)));
              setTab("program");
            }}
          />
        )}
        {tab === "timeline" && <Timeline track={track} theme={theme} />}
        {tab === "memory" && <Memory report={report} theme={theme} />}
        {tab === "program" && <Program report={report} chosen={equation} onChoose={setEquation} />}
        {tab === "compare" && (
          <>
            {reports.length > 1 && <Compare reports={[reports[0]!, reports[1]!]} theme={theme} />}
            <p>
              <label>
                {reports.length > 1 ? "Compare with another report: " : "Choose another report to compare with: "}
                <input type="file" accept=".html,.json" onChange={(event) => load(event.currentTarget.files?.[0])} />
              </label>{" "}
              <span role="alert">{failed}</span>
            </p>
          </>
        )}
      </main>
    </>
  );
}

const given = JSON.parse(document.getElementById("report")!.textContent!) as Report[] | Sheet[];
const first = given[0]!;
render("parts" in first ? <SheetPage sheet={first} /> : <Page given={given as Report[]} />, document.getElementById("root")!);
