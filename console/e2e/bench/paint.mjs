// Times of a view's first paint and of its data, and what it asked for: once with nothing cached, then again.
import { Visit } from "../lib/browser.mjs";

export async function run(visit, { views, rounds }) {
  const told = [];
  for (const view of views) {
    for (let round = 0; round < rounds; round += 1) {
      const fresh = await Visit.begin(visit.context.browser(), visit.root);
      for (const cached of [false, true]) told.push({ view, cached, ...(await measured(fresh, view)) });
      await fresh.end();
    }
  }
  return told;
}

async function measured(visit, view) {
  await visit.open(view);
  return visit.page.evaluate(() => {
    const shown = performance.now(); // since the navigation began
    const paint = performance.getEntriesByName("first-contentful-paint")[0];
    const all = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
    const sent = all.filter((one) => one.transferSize > 0);
    return { paint_ms: paint?.startTime ?? 0, shown_ms: shown, requests: sent.length, bytes: sent.reduce((sum, one) => sum + one.transferSize, 0), rows: document.querySelectorAll("tbody tr").length };
  });
}
