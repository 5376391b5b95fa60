// A canvas that is drawn anew when what it shows, its width or the theme changes.
import { useEffect, useRef } from "preact/hooks";

export type Draw = (context: CanvasRenderingContext2D, width: number, color: (name: string) => string) => void;

export function useCanvas(height: number, draw: Draw, depends: unknown[]) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const again = () => {
      const width = element.clientWidth;
      const scale = window.devicePixelRatio || 1;
      element.width = width * scale;
      element.height = height * scale;
      const context = element.getContext("2d")!;
      const style = getComputedStyle(document.documentElement);
      context.scale(scale, scale);
      context.clearRect(0, 0, width, height);
      context.font = "12px system-ui, sans-serif";
      draw(context, width, (name) => style.getPropertyValue(`--${name}`));
    };
    again();
    const watch = new ResizeObserver(again);
    watch.observe(element);
    return () => watch.disconnect();
  }, depends);
  return canvas;
}
