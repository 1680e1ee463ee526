"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const canvas = document.getElementById("jobs");
  const tip = document.getElementById("tip");
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
  const view = { from: 0, to: data.until };
  const width = () => canvas.clientWidth;
  const x = (time) => LEFT + ((time - view.from) / (view.to - view.from)) * (width() - LEFT);
  const timeAt = (px) => view.from + ((px - LEFT) / (width() - LEFT)) * (view.to - view.from);
  const words = (time) => `${+time.toPrecision(4)} ${data.unit}`;

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
    const ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width() * ratio);
    canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width(), height);
    pen.font = "11px system-ui, Arial, sans-serif";
    pen.textBaseline = "middle";
    ticks(pen);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, width() - LEFT, height);
    pen.clip();
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
    document.getElementById("window").textContent = `${words(view.from)} to ${words(view.to)} of ${words(data.until)}`;
  }

  let waiting = false;
  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  }

  function show(from, to) {
    const range = Math.min(Math.max(to - from, data.until * 1e-6), data.until);
    view.from = Math.min(Math.max(from, 0), data.until - range);
    view.to = view.from + range;
    redraw();
  }

  function zoom(factor, at) {
    show(at - (at - view.from) / factor, at + (view.to - at) / factor);
  }

  function what(px, py) {
    const time = timeAt(px);
    const here = (box) => box.from <= time && time < box.to &&
      box.runs.some(([first, count]) => {
        const y = py - tops[box.node];
        return y >= first * PITCH && y < (first + count) * PITCH;
      });
    const box = px >= LEFT && data.boxes.find(here);
    return box ? box.tip : "";
  }

  let drag = null;
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * 0.002), timeAt(Math.max(event.offsetX, LEFT)));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    drag = { px: event.offsetX, from: view.from, to: view.to };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("dblclick", () => show(0, data.until));
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const moved = ((event.offsetX - drag.px) / (width() - LEFT)) * (drag.to - drag.from);
      show(drag.from - moved, drag.to - moved);
      return;
    }
    const text = what(event.offsetX, event.offsetY);
    tip.hidden = !text;
    tip.textContent = text;
    const box = tip.parentElement.getBoundingClientRect();
    const left = event.clientX - box.left + 14;
    tip.style.left = `${Math.max(0, Math.min(left, box.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${event.clientY - box.top + 16}px`;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("keydown", (event) => {
    const range = view.to - view.from, middle = (view.from + view.to) / 2;
    const keys = {
      ArrowLeft: () => show(view.from - range / 5, view.to - range / 5),
      ArrowRight: () => show(view.from + range / 5, view.to + range / 5),
      "+": () => zoom(1.5, middle),
      "-": () => zoom(1 / 1.5, middle),
      0: () => show(0, data.until),
    };
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  });
  document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => {
    const factor = Number(button.dataset.zoom);
    if (factor) zoom(factor, (view.from + view.to) / 2);
    else show(0, data.until);
  }));
  // A link may say what to show: page.html#zoom=0.2,0.25 are parts of the schedule.
  const part = location.hash.match(/^#zoom=([\d.]+),([\d.]+)$/);
  if (part) show(Number(part[1]) * data.until, Number(part[2]) * data.until);
  dark.addEventListener("change", redraw);
  new ResizeObserver(redraw).observe(canvas);
  redraw();
})();
