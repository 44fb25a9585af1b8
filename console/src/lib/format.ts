// Numbers and times as people read them. 0 is 0; what is unknown is "-".

export const UNKNOWN = "-";
type Maybe = number | null | undefined;

const known = (value: Maybe): value is number => typeof value === "number" && Number.isFinite(value);

/** Three significant digits, with thousands separated: `1,204`, `0.31`, `2.9`. */
export function number(value: Maybe, digits = 3): string {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return "0";
  const whole = Math.abs(value) >= 10 ** (digits - 1);
  return value.toLocaleString("en", whole ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: digits });
}

/** `12.3k`, `4.1M`: for axes and narrow places. */
export function compact(value: Maybe): string {
  if (!known(value)) return UNKNOWN;
  for (const [size, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e4, "k"]] as const) {
    if (Math.abs(value) >= size) return `${number(value / (size === 1e4 ? 1e3 : size))}${unit}`;
  }
  return number(value);
}

/** A duration in seconds: `0`, `850 µs`, `31 ms`, `2.94 s`, `4 min 10 s`, `3 h 5 min`, `2 d 4 h`. */
export function duration(seconds: Maybe): string {
  if (!known(seconds)) return UNKNOWN;
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 0.001) return `${number(seconds * 1e6)} µs`;
  if (size < 0.9995) return `${number(seconds * 1e3)} ms`;
  if (size < 99.95) return `${number(seconds)} s`;
  const steps = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]] as const;
  for (const [large, largeUnit, small, smallUnit] of steps) {
    if (Math.round(size / small) * small < large) continue;
    const units = Math.round(seconds / small);
    const [first, second] = [Math.trunc(units / (large / small)), units % (large / small)];
    return second ? `${first} ${largeUnit} ${second} ${smallUnit}` : `${first} ${largeUnit}`;
  }
  return `${number(seconds)} s`;
}

/** A share of 1: `41 %`, `0.3 %`, `< 0.1 %`. */
export function percent(share: Maybe): string {
  if (!known(share)) return UNKNOWN;
  const value = share * 100;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  return `${Math.abs(value) < 10 && value !== 0 ? number(value, 2) : Math.round(value)} %`;
}

export function bytes(value: Maybe): string {
  if (!known(value)) return UNKNOWN;
  let [size, unit] = [value, 0];
  while (Math.abs(size) >= 1024 && unit < 5) [size, unit] = [size / 1024, unit + 1];
  return `${number(size)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

/** An amount of a currency; small ones keep two significant digits: `$0.0021`. */
export function money(value: Maybe, currency = "USD"): string {
  if (!known(value)) return UNKNOWN;
  const small = value !== 0 && Math.abs(value) < 0.1;
  return value.toLocaleString("en", {
    style: "currency",
    currency,
    ...(small ? { maximumSignificantDigits: 2, minimumSignificantDigits: 2 } : {}),
  });
}

/** `1 token`, `1,204 tokens`. */
export function count(value: Maybe, one: string, many = `${one}s`): string {
  return known(value) ? `${number(value)} ${value === 1 ? one : many}` : UNKNOWN;
}

/** A number in the unit that the server names; an unnamed unit follows it as it is. */
export function withUnit(value: Maybe, unit = ""): string {
  if (!known(value)) return UNKNOWN;
  switch (unit) {
    case "s": return duration(value);
    case "ms": return duration(value / 1000);
    case "us": return duration(value / 1e6);
    case "share": case "ratio": return percent(value);
    case "%": return percent(value / 100);
    case "bytes": case "B": return bytes(value);
    case "USD": case "EUR": return money(value, unit);
    case "1/s": return `${number(value)}/s`;
    default: return unit ? `${number(value)} ${unit}` : number(value);
  }
}

/** Whether numbers of a unit are written in a form of its own (`31 ms`, `41 %`); others are a number and a word. */
export function hasOwnForm(unit: string): boolean {
  return /^(s|ms|us|share|ratio|%|bytes|B|USD|EUR)$/.test(unit);
}

/** A number beside an axis: short, and without a word that the title has. */
export function onAxis(value: number, unit: string): string {
  if ((unit === "USD" || unit === "EUR") && Math.abs(value) >= 100) return value.toLocaleString("en", { style: "currency", currency: unit, maximumFractionDigits: 0 });
  if (unit === "share" || unit === "ratio") return `${number(value * 100, 2)} %`; // marks differ, however small
  return hasOwnForm(unit) ? withUnit(value, unit) : compact(value);
}

const twoDigits = (value: number): string => String(value).padStart(2, "0");

/** Time of day in this browser's zone, from UNIX seconds: `14:02:11`. */
export function clock(at: Maybe, withSeconds = true): string {
  if (!known(at)) return UNKNOWN;
  const date = new Date(at * 1000);
  const time = `${twoDigits(date.getHours())}:${twoDigits(date.getMinutes())}`;
  return withSeconds ? `${time}:${twoDigits(date.getSeconds())}` : time;
}

/** Date and time in this browser's zone: `2026-11-27 14:02:11`. */
export function dateTime(at: Maybe): string {
  if (!known(at)) return UNKNOWN;
  const date = new Date(at * 1000);
  return `${date.getFullYear()}-${twoDigits(date.getMonth() + 1)}-${twoDigits(date.getDate())} ${clock(at)}`;
}

/** A sentence that says since when: `Slow since 14:02: …`, or `…, since 14:02.`; with the date where that is not of the last 12 hours. */
export function sinceText(sentence: string, since: Maybe, now: number): string {
  if (!known(since)) return sentence;
  const time = now - since < 12 * 3600 ? clock(since, false) : dateTime(since).slice(0, 16);
  const named = sentence.replace(/^(\w+): /, `$1 since ${time}: `);
  return named === sentence ? `${sentence.replace(/\.$/, "")}, since ${time}.` : named;
}

/** Distance from now: `just now`, `12 s ago`, `3 min ago`, `2 h ago`, `5 d ago`, `in 3 min`. */
export function relative(at: Maybe, now: number): string {
  if (!known(at)) return UNKNOWN;
  const size = Math.abs(now - at);
  if (size < 2) return "just now";
  const text =
    size < 60 ? `${Math.floor(size)} s`
    : size < 3600 ? `${Math.floor(size / 60)} min`
    : size < 86400 ? `${Math.floor(size / 3600)} h`
    : `${Math.floor(size / 86400)} d`;
  return at > now ? `in ${text}` : `${text} ago`;
}

/** Rows as CSV (RFC 4180). A text that a spreadsheet would run as a formula gets a `'` before it. */
export function csv(head: string[], rows: (string | number | null | undefined)[][]): string {
  const cell = (value: string | number | null | undefined): string => {
    if (value === null || value === undefined) return "";
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [head, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

/** Round marks for an axis from 0 to `end`: at most `most` of them. */
export function ticks(end: number, most = 7): number[] {
  if (!(end > 0)) return [0];
  const rough = end / most;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5, 10].find((factor) => factor * size >= rough * 0.9999) ?? 10) * size;
  return Array.from({ length: Math.floor(end / step + 1e-9) + 1 }, (_, index) => Number((index * step).toPrecision(12)));
}
