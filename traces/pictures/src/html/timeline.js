(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const spans = document.getElementById("spans");
  const memory = document.getElementById("memory");
  const LEFT = innerWidth < 600 ? 64 : 96, TOP = 22, ACTION = 18, LANE = 9, GAP = 7, MEMORY = 240;
  // Colours of lines and text follow the reader's setting for light and dark.
  const styles = getComputedStyle(document.documentElement);
  const colour = (name) => styles.getPropertyValue(`--${name}`).trim();
  const resolved = (css) => (css.startsWith("var(--") ? colour(css.slice(6, -1)) : css);
  const letters = Object.keys(data.actions);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const rankColour = (index, count) => `hsl(${Math.round((index * 300) / Math.max(count, 1))} 65% ${dark.matches ? 62 : 40}%)`;

  // Starts are stored as differences; drawing and pointing search them by time.
  let height = TOP;
  const ranks = data.ranks.map((rank) => {
    const y = height;
    const lanes = data.streams.filter((name) => rank.lanes[name]).map((name, index) => {
      const packed = rank.lanes[name];
      const count = packed.length / 4;
      const start = new Float64Array(count), end = new Float64Array(count);
      let time = 0;
      for (let i = 0; i < count; i++) {
        time += packed[4 * i];
        start[i] = time;
        end[i] = time + packed[4 * i + 1];
      }
      return { name, start, end, packed, y: y + ACTION + index * LANE };
    });
    height += ACTION + lanes.length * LANE + GAP;
    return { ...rank, y, lanes };
  });
  height += 4;

  const duration = (ns) =>
    ns === 0 ? "0 s" : ns >= 1e9 ? `${(ns / 1e9).toPrecision(4)} s` : ns >= 1e6 ? `${(ns / 1e6).toPrecision(4)} ms` : `${(ns / 1e3).toPrecision(4)} µs`;

  const { view, width, x, timeAt, redraw, prepare, clip } = zoomable({
    canvases: [spans, memory], until: data.duration, least: 100, left: LEFT, words: duration,
    draw: () => { drawSpans(); drawMemory(); },
    tip: (canvas, px, py) => (canvas === spans ? what(px, py) : held(px)),
  });

  // First index whose end is after the time: ends are in order, since spans of a stream never overlap.
  function after(ends, time) {
    let low = 0, high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle] > time) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  function ticks(pen, pixels) {
    const range = view.to - view.from;
    const rough = range / 8, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const unit = step >= 1e9 ? [1e9, "s"] : step >= 1e6 ? [1e6, "ms"] : step >= 1e3 ? [1e3, "µs"] : [1, "ns"];
    const decimals = Math.max(0, Math.ceil(-Math.log10(step / unit[0]) - 1e-9));
    pen.textAlign = "center";
    for (let time = Math.ceil(view.from / step) * step; time <= view.to; time += step) {
      pen.fillStyle = colour("grid");
      pen.fillRect(x(time), TOP - 6, 1, pixels);
      pen.fillStyle = colour("grey");
      pen.fillText(`${(time / unit[0]).toFixed(decimals)} ${unit[1]}`, Math.min(x(time), width() - 24), 9);
    }
  }

  // What is drawn narrower than a pixel is shown as shares: each column of pixels is filled, from the bottom, with the
  // part of its time that each colour has. What fills whole columns looks like a box.
  function shares(pen, count, extent, colours, y, pixels) {
    const columns = Math.max(1, Math.ceil(width() - LEFT)), kinds = colours.length;
    const parts = new Float64Array(columns * kinds);
    let first = columns, last = -1;
    for (let i = 0; i < count; i++) {
      const [start, end, kind] = extent(i);
      const left = Math.max(0, x(start) - LEFT), right = Math.min(columns, x(end) - LEFT);
      if (right <= left) continue;
      first = Math.min(first, Math.floor(left));
      for (let column = Math.floor(left); column < right; column++) {
        parts[column * kinds + kind] += Math.min(right, column + 1) - Math.max(left, column);
        last = Math.max(last, column);
      }
    }
    for (let kind = 0; kind < kinds; kind++) {
      pen.fillStyle = colours[kind];
      for (let column = first; column <= last; column++) {
        const part = parts[column * kinds + kind];
        if (part <= 0) continue;
        // Neighbours that are full are one rectangle.
        let next = column + 1;
        if (part > 0.999) while (next <= last && parts[next * kinds + kind] > 0.999) next++;
        let below = 0;
        if (part <= 0.999) for (let other = 0; other < kind; other++) below += parts[column * kinds + other];
        pen.fillRect(LEFT + column, y + pixels * (1 - Math.min(1, below + part)), next - column, pixels * Math.min(part, 1));
        column = next - 1;
      }
    }
  }

  function drawActions(pen, rank) {
    const list = rank.actions, colours = letters.map((letter) => data.actions[letter][1]);
    const wide = [], narrow = [];
    for (let i = 0; i < list.length; i += 5) {
      const start = list[i], end = start + list[i + 1];
      if (end < view.from || start > view.to) continue;
      (x(end) - x(start) >= 3 ? wide : narrow).push(i);
    }
    const kind = (i) => Math.max(0, letters.indexOf(String.fromCharCode(list[i + 2])));
    shares(pen, narrow.length, (n) => [list[narrow[n]], list[narrow[n]] + list[narrow[n] + 1], kind(narrow[n])], colours, rank.y, ACTION - 2);
    for (const i of wide) {
      const left = x(list[i]), size = x(list[i] + list[i + 1]) - left, name = letters[kind(i)];
      pen.fillStyle = colours[kind(i)];
      pen.fillRect(left, rank.y, size - 0.8, ACTION - 2);
      const text = `${name}${list[i + 4]}`;
      if (size > 8 + 6 * text.length) {
        pen.fillStyle = "#1a1a1a";
        pen.textAlign = "center";
        pen.fillText(text, (Math.max(left, LEFT) + Math.min(left + size, width())) / 2, rank.y + ACTION / 2 - 1);
      }
    }
  }

  function drawSpans() {
    const pen = prepare(spans, height);
    const kindColours = data.colours.map(resolved);
    ticks(pen, height);
    clip(pen, height);
    for (const rank of ranks) {
      drawActions(pen, rank);
      for (const lane of rank.lanes) {
        const from = after(lane.end, view.from);
        let until = from;
        while (until < lane.start.length && lane.start[until] < view.to) until++;
        const extent = (i) => [lane.start[from + i], lane.end[from + i], lane.packed[4 * (from + i) + 3]];
        shares(pen, until - from, extent, kindColours, lane.y, LANE - 2);
      }
    }
    if (data.complete_until !== null && data.complete_until < view.to) {
      pen.fillStyle = colour("edge");
      pen.fillRect(x(data.complete_until), TOP - 6, 1, height);
    }
    pen.restore();
    for (const rank of ranks) {
      pen.textAlign = "right";
      pen.fillStyle = colour("ink");
      pen.fillText(rank.name, LEFT - 6, rank.y + ACTION / 2 - 1);
      pen.fillStyle = colour("grey");
      pen.font = "9px system-ui, Arial, sans-serif";
      for (const lane of rank.lanes) pen.fillText(lane.name, LEFT - 6, lane.y + LANE / 2 - 1);
      pen.font = "11px system-ui, Arial, sans-serif";
    }
  }

  const limit = data.limit_bytes / 1048576;
  const highest = Math.max(limit, ...data.ranks.map((rank) => rank.memory.reduce((most, v, i) => (i % 2 ? Math.max(most, v) : most), 0)));
  const up = (mib) => MEMORY - 6 - (mib / (highest * 1.05)) * (MEMORY - TOP - 8);

  function drawMemory() {
    const pen = prepare(memory, MEMORY);
    ticks(pen, MEMORY);
    const rough = highest / 1024 / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    pen.textAlign = "right";
    for (let gib = 0; gib * 1024 <= highest * 1.04; gib += step) {
      pen.fillStyle = colour("grid");
      pen.fillRect(LEFT, up(gib * 1024), width() - LEFT, 1);
      pen.fillStyle = colour("grey");
      pen.fillText(`${+gib.toPrecision(3)} GiB`, LEFT - 6, up(gib * 1024));
    }
    clip(pen, MEMORY);
    ranks.forEach((rank, index) => {
      const list = rank.memory;
      pen.strokeStyle = rankColour(index, ranks.length);
      pen.lineWidth = 1.2;
      pen.beginPath();
      for (let i = 0; i < list.length; i += 2) {
        const start = x(list[i]), end = x(i + 2 < list.length ? list[i + 2] : data.duration);
        if (end < LEFT || start > width()) continue;
        pen.lineTo(start, up(list[i + 1]));
        pen.lineTo(end, up(list[i + 1]));
      }
      pen.stroke();
    });
    pen.strokeStyle = colour("limit");
    pen.setLineDash([6, 4]);
    pen.beginPath();
    pen.moveTo(LEFT, up(limit));
    pen.lineTo(width(), up(limit));
    pen.stroke();
    pen.setLineDash([]);
    pen.fillStyle = colour("limit");
    pen.textAlign = "right";
    pen.fillText(`GPU ${(limit / 1024).toFixed(1)} GiB`, width() - 6, up(limit) - 8);
    pen.restore();
  }

  function what(px, py) {
    const time = timeAt(px);
    for (const rank of ranks) {
      if (py >= rank.y && py < rank.y + ACTION) {
        const list = rank.actions;
        for (let i = 0; i < list.length; i += 5) {
          if (time >= list[i] && time < list[i] + list[i + 1]) {
            const letter = String.fromCharCode(list[i + 2]);
            return `${rank.name}, ${list[i + 3]}${letter}${list[i + 4]}: stage ${list[i + 3]}, microbatch ${list[i + 4]}, ${duration(list[i + 1])} from ${duration(list[i])}`;
          }
        }
      }
      for (const lane of rank.lanes) {
        if (py < lane.y - 1 || py >= lane.y + LANE - 1) continue;
        const i = after(lane.end, time);
        if (i < lane.start.length && lane.start[i] <= time) {
          return `${rank.name}, ${lane.name}: ${data.labels[lane.packed[4 * i + 2]]} (${data.kinds[lane.packed[4 * i + 3]]}), ${duration(lane.end[i] - lane.start[i])} from ${duration(lane.start[i])}`;
        }
      }
    }
    return "";
  }

  function held(px) {
    const time = timeAt(px);
    return ranks.map((rank) => {
      let value = 0;
      for (let i = 0; i < rank.memory.length && rank.memory[i] <= time; i += 2) value = rank.memory[i + 1];
      return `${rank.name} ${(value / 1024).toFixed(1)}`;
    }).slice(0, 12).join(", ") + ` GiB at ${duration(time)}`;
  }

  const entry = (parent, fill, text) => {
    const span = document.createElement("span"), box = document.createElement("i");
    box.style.background = fill;
    span.append(box, text);
    document.getElementById(parent).append(span, " ");
  };
  const used = new Set(data.ranks.flatMap((rank) => rank.actions.filter((_, i) => i % 5 === 2)).map((c) => String.fromCharCode(c)));
  const legend = () => {
    for (const id of ["legend", "ranks"]) document.getElementById(id).replaceChildren();
    for (const letter of letters) if (used.has(letter)) entry("legend", data.actions[letter][1], data.actions[letter][0]);
    data.kinds.forEach((kind, index) => entry("legend", data.colours[index], kind));
    ranks.forEach((rank, index) => entry("ranks", rankColour(index, ranks.length), rank.name));
  };
  legend();
  dark.addEventListener("change", () => { legend(); redraw(); });
  redraw();
})();
