(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const canvas = document.getElementById("jobs");
  const LEFT = 8 + 7 * Math.max(...data.nodes.map(([name]) => name.length)), TOP = 22, GAP = 5;
  const gpus = data.nodes.reduce((sum, [, count]) => sum + count, 0);
  const PITCH = Math.min(18, Math.max(3, 640 / gpus));
  // Colours of lines and text follow the reader's setting for light and dark.
  const styles = getComputedStyle(document.documentElement);
  const colour = (css) => (css.startsWith("var(--") ? styles.getPropertyValue(css.slice(4, -1)).trim() : css);
  const dark = matchMedia("(prefers-color-scheme: dark)");

  let height = TOP;
  const tops = data.nodes.map(([, count]) => {
    const top = height;
    height += count * PITCH + GAP;
    return top;
  });
  const words = (time) => `${+time.toPrecision(4)} ${data.unit}`;

  const { view, width, x, timeAt, redraw, prepare, clip } = zoomable({
    canvases: [canvas], until: data.until, least: data.until * 1e-6, left: LEFT, words, draw, tip: (_, px, py) => what(px, py),
  });

  function ticks(pen) {
    const rough = (view.to - view.from) / 8, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const decimals = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
    pen.textAlign = "center";
    for (let time = Math.ceil(view.from / step) * step; time <= view.to; time += step) {
      pen.fillStyle = colour("var(--grid)");
      pen.fillRect(x(time), TOP - 6, 1, height);
      pen.fillStyle = colour("var(--grey)");
      pen.fillText(time.toFixed(decimals), Math.min(x(time), width() - 24), 9);
    }
  }

  function draw() {
    const pen = prepare(canvas, height);
    ticks(pen);
    clip(pen, height);
    for (const box of data.boxes) {
      if (box.to < view.from || box.from > view.to) continue;
      const left = x(box.from), size = Math.max(0.5, x(box.to) - left);
      box.runs.forEach(([first, count], index) => {
        const y = tops[box.node] + first * PITCH, tall = Math.max(0.5, count * PITCH - 0.5);
        pen.fillStyle = colour(box.colour);
        pen.fillRect(left, y, size - (size > 3 ? 0.8 : 0), tall);
        const from = Math.max(left, LEFT), to = Math.min(left + size, width());
        if (index === 0 && tall >= 10 && to - from > 6 + pen.measureText(box.name).width) {
          // What the reader's setting makes light has dark letters.
          pen.fillStyle = box.colour.startsWith("var(") ? colour("var(--paper)") : "#ffffff";
          pen.textAlign = "center";
          pen.fillText(box.name, (from + to) / 2, y + tall / 2);
        }
      });
    }
    pen.restore();
    pen.textAlign = "right";
    pen.fillStyle = colour("var(--ink)");
    data.nodes.forEach(([name, count], node) => pen.fillText(name, LEFT - 6, tops[node] + (count * PITCH) / 2));
  }

  function what(px, py) {
    const time = timeAt(px);
    const here = (box) => box.from <= time && time < box.to &&
      box.runs.some(([first, count]) => {
        const y = py - tops[box.node];
        return y >= first * PITCH && y < (first + count) * PITCH;
      });
    const box = data.boxes.find(here);
    return box ? box.tip : "";
  }

  dark.addEventListener("change", redraw);
  redraw();
})();
