// Steps on a time axis: a bar's height is the step's time, its lower part what the device needs at least.
import { useEffect, useRef } from "preact/hooks";
import { duration } from "../../lib/format";
import { colour, colours } from "../../lib/theme";
import type { Shared } from "./shared";

export function StepChart({ steps }: { steps: Shared[] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const drawn = colours.value;
  useEffect(() => {
    const element = canvas.current;
    if (!element) return;
    const draw = (): void => paint(element, steps);
    const watch = new ResizeObserver(draw);
    watch.observe(element);
    draw();
    return () => watch.disconnect();
  }, [steps, drawn]);
  const most = Math.max(0, ...steps.map(({ seconds }) => seconds));
  if (!steps.length) return null;
  return (
    <figure>
      <canvas ref={canvas} class="step-grid" role="img" aria-label={`${steps.length} steps, the longest ${duration(most)}; the table has the slowest`} />
      <figcaption class="stage-key">
        <span><span class="swatch stage stage-decode" aria-hidden="true" />decode only</span>
        <span><span class="swatch stage stage-prefill" aria-hidden="true" />with a prompt</span>
        <span><span class="swatch stage stage-client" aria-hidden="true" />without this request (half wide)</span>
        <span>highest: {duration(most)}; the line in a bar is the device's floor</span>
      </figcaption>
    </figure>
  );
}

function paint(canvas: HTMLCanvasElement, steps: Shared[]): void {
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth * scale, canvas.clientHeight * scale];
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const context = canvas.getContext("2d");
  const [first, last] = [steps[0], steps.at(-1)];
  if (!context || !first || !last) return;
  context.clearRect(0, 0, width, height);
  const span = Math.max(last.at + last.seconds - first.at, 1e-9);
  const most = Math.max(...steps.map(({ seconds }) => seconds), 1e-9);
  const [own, prompt, without, text] = ["--decode", "--prefill", "--client", "--text"].map(colour);
  for (const step of steps) {
    const left = ((step.at - first.at) / span) * width;
    const wide = Math.max((step.seconds / span) * width - scale, scale);
    const high = (step.seconds / most) * height;
    context.fillStyle = (!step.own ? without : step.prefill ? prompt : own) ?? "";
    context.fillRect(left, height - high, step.own ? wide : wide / 2, high);
    if (step.floor === null) continue;
    context.fillStyle = text ?? "";
    context.fillRect(left, height - (step.floor / most) * height, wide, scale);
  }
}
