// Light or dark: as the system has it, until the button is pressed.
import type { JSX } from "preact";
import { useState } from "preact/hooks";

export function useTheme(): [string, JSX.Element] {
  const [theme, setTheme] = useState(() =>
    matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light",
  );
  document.documentElement.dataset.theme = theme;
  const other = theme === "dark" ? "light" : "dark";
  const button = (
    <button id="theme" onClick={() => setTheme(other)}>
      {other === "dark" ? "Dark" : "Light"}
    </button>
  );
  return [theme, button];
}
