// Bundles the page into one file: what the browser needs stands in it, and the data goes where DATA stands.
import { readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const target = process.argv[2] ?? "../src/meshwright/chart/report.html";
const options = { bundle: true, minify: true, write: false, target: "es2022", legalComments: "none" };
const script = await build({
  ...options,
  entryPoints: ["src/main.tsx"],
  format: "iife",
  jsx: "automatic",
  jsxImportSource: "preact",
});
const style = await build({ ...options, entryPoints: ["src/style.css"] });
const text = (made) => made.outputFiles[0].text.trim();
// A script ends at the first closing tag in it, whatever is around that.
const js = text(script).replaceAll("</script", "<\\/script");
const page = readFileSync("src/page.html", "utf8")
  .replace("STYLE", () => text(style))
  .replace("SCRIPT", () => js);
writeFileSync(target, page);
console.log(`${target}: ${page.length} bytes`);
