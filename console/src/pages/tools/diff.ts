// Line by line, what a tool said when it was approved and what it says now.

export interface Line {
  sign: "+" | "-" | " ";
  text: string;
}

/** Lines that both have stay; others are taken away or added: the longest common subsequence, so as few as can be. */
export function lineDiff(before: string[], after: string[]): Line[] {
  const [n, m] = [before.length, after.length];
  const length = Array.from({ length: n + 1 }, () => new Uint16Array(m + 1)); // of what the rests have in common
  const at = (i: number, j: number): number => length[i]?.[j] ?? 0;
  for (let i = n - 1; i >= 0; i--) {
    const row = length[i] as Uint16Array;
    for (let j = m - 1; j >= 0; j--) row[j] = before[i] === after[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
  }
  const lines: Line[] = [];
  let [i, j] = [0, 0];
  while (i < n || j < m) {
    if (i < n && j < m && before[i] === after[j]) { lines.push({ sign: " ", text: after[j++] ?? "" }); i++; }
    else if (i < n && (j >= m || at(i + 1, j) >= at(i, j + 1))) lines.push({ sign: "-", text: before[i++] ?? "" });
    else lines.push({ sign: "+", text: after[j++] ?? "" });
  }
  return lines;
}
