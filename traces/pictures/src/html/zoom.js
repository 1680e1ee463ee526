"use strict";
// Time across canvases, from 0 to `until`, of which people zoom into a part (`least` is the shortest) and move it: with the wheel, by
// dragging, with keys and with the buttons of the page. `left` pixels of each canvas are for names. `draw` draws all canvases, `words`
// says a time, and `tip` what is at a point of a canvas.
function zoomable({ canvases, until, least, left, draw, words, tip }) {
  const view = { from: 0, to: until };
  const [first] = canvases, label = document.getElementById("tip");
  const width = () => first.clientWidth;
  const x = (time) => left + ((time - view.from) / (view.to - view.from)) * (width() - left);
  const timeAt = (px) => view.from + ((px - left) / (width() - left)) * (view.to - view.from);

  let waiting = false;
  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
      document.getElementById("window").textContent = `${words(view.from)} to ${words(view.to)} of ${words(until)}`;
    });
  }

  function show(from, to) {
    const range = Math.min(Math.max(to - from, least), until);
    view.from = Math.min(Math.max(from, 0), until - range);
    view.to = view.from + range;
    redraw();
  }

  function zoom(factor, at) {
    show(at - (at - view.from) / factor, at + (view.to - at) / factor);
  }
  const middle = () => (view.from + view.to) / 2;

  for (const canvas of canvases) {
    let drag = null;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      zoom(Math.exp(-event.deltaY * 0.002), timeAt(Math.max(event.offsetX, left)));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      drag = { px: event.offsetX, from: view.from, to: view.to };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", () => { drag = null; });
    canvas.addEventListener("dblclick", () => show(0, until));
    canvas.addEventListener("pointermove", (event) => {
      if (drag) {
        const moved = ((event.offsetX - drag.px) / (width() - left)) * (drag.to - drag.from);
        show(drag.from - moved, drag.to - moved);
        return;
      }
      const text = event.offsetX < left ? "" : tip(canvas, event.offsetX, event.offsetY);
      label.hidden = !text;
      label.textContent = text;
      const box = label.parentElement.getBoundingClientRect();
      label.style.left = `${Math.max(0, Math.min(event.clientX - box.left + 14, box.width - label.offsetWidth - 4))}px`;
      label.style.top = `${event.clientY - box.top + 16}px`;
    });
    canvas.addEventListener("pointerleave", () => { label.hidden = true; });
  }
  first.addEventListener("keydown", (event) => {
    const range = view.to - view.from;
    const keys = {
      ArrowLeft: () => show(view.from - range / 5, view.to - range / 5),
      ArrowRight: () => show(view.from + range / 5, view.to + range / 5),
      "+": () => zoom(1.5, middle()),
      "-": () => zoom(1 / 1.5, middle()),
      0: () => show(0, until),
    };
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  });
  document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => {
    const factor = Number(button.dataset.zoom);
    if (factor) zoom(factor, middle());
    else show(0, until);
  }));
  // A link may say what to show: page.html#zoom=0.2,0.25 are parts of all time.
  const part = location.hash.match(/^#zoom=([\d.]+),([\d.]+)$/);
  if (part) show(Number(part[1]) * until, Number(part[2]) * until);
  new ResizeObserver(redraw).observe(first);

  // A pen for a canvas of this height, with nothing drawn yet.
  function prepare(canvas, pixels) {
    const ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${pixels}px`;
    canvas.width = Math.round(canvas.clientWidth * ratio);
    canvas.height = Math.round(pixels * ratio);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, canvas.clientWidth, pixels);
    pen.font = "11px system-ui, Arial, sans-serif";
    pen.textBaseline = "middle";
    return pen;
  }

  // Draws nothing on the names.
  function clip(pen, pixels) {
    pen.save();
    pen.beginPath();
    pen.rect(left, 0, width() - left, pixels);
    pen.clip();
  }

  return { view, width, x, timeAt, redraw, prepare, clip };
}
