"use strict";
// Draws the charts, keeps them in the colours of the page, and lets the legend show or hide a method everywhere.
const charts = JSON.parse(document.getElementById("charts").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const narrow = window.matchMedia("(max-width: 640px)");

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function themed(layout) {
  const axis = { gridcolor: colour("--line"), linecolor: colour("--line"), tickfont: { color: colour("--soft") } };
  return {
    ...layout,
    xaxis: { ...layout.xaxis, ...axis },
    yaxis: { ...layout.yaxis, ...axis },
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--ink") },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 48, r: 12, t: 10, b: 48, ...layout.margin },
    hoverlabel: { bgcolor: colour("--card"), font: { color: colour("--ink") } },
    dragmode: narrow.matches ? false : "zoom",
  };
}

const config = { responsive: true, displayModeBar: false };

for (const chart of charts) Plotly.newPlot(chart.id, chart.data, themed(chart.layout), config);

dark.addEventListener("change", () => {
  for (const chart of charts) Plotly.react(chart.id, chart.data, themed(chart.layout), config);
});

for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const chart of charts) {
      const traces = [];
      chart.data.forEach((trace, index) => {
        if (trace.meta !== button.dataset.method) return;
        trace.visible = shown;
        traces.push(index);
      });
      if (traces.length) Plotly.restyle(chart.id, { visible: shown }, traces);
    }
  });
}
