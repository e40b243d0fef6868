/* What moves in a report: sliders that change the mean image, points that show their samples, pictures that open. */
"use strict";
(() => {
  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  /* Return a widget of the page with its data and its decoded sheet of images; null where there is none. */
  async function read(id) {
    const widget = document.getElementById(id);
    if (!widget) return null;
    const sheet = widget.querySelector("img");
    await sheet.decode();
    return { widget, sheet, ...JSON.parse(widget.querySelector("script").textContent) };
  }

  const signed = (number) => (number < 0 ? "\u2212" : "+") + Math.abs(number).toFixed(1);

  /* Draw the thumbnails of point number `at`: the sample, or what the components make of it. */
  function drawTile(canvas, { sheet, tile: [tall, wide], columns }, at, reconstructed) {
    [canvas.width, canvas.height] = [wide, tall];
    const top = (2 * Math.floor(at / columns) + (reconstructed ? 1 : 0)) * tall;
    canvas.getContext("2d").drawImage(sheet, (at % columns) * wide, top, wide, tall, 0, 0, wide, tall);
  }

  /* -- sliders */

  /* Return the mean and the components as numbers: their two bytes lie one image below the other, 0 is missing. */
  function decoded({ sheet, pictures, tall, wide, colours, ends }) {
    const canvas = make("canvas", { width: sheet.naturalWidth, height: sheet.naturalHeight });
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(sheet, 0, 0);
    const bytes = context.getImageData(0, 0, canvas.width, canvas.height).data;
    const size = pictures * tall * wide * colours;
    return ends.map(([low, high], image) =>
      Float64Array.from({ length: size }, (_, at) => {
        const word = 256 * bytes[4 * (2 * image * size + at)] + bytes[4 * ((2 * image + 1) * size + at)];
        return word ? low + ((word - 1) / 65534) * (high - low) : NaN;
      }),
    );
  }

  /* Draw the mean plus the components times scores, pictures side by side, missing pixels hatched. */
  function drawSum(canvas, { pictures, tall, wide, colours, limits }, [mean, ...patterns], scores) {
    const context = canvas.getContext("2d");
    const gap = 2;
    [canvas.width, canvas.height] = [pictures * (wide + gap) - gap, tall];
    for (let picture = 0; picture < pictures; picture++) {
      const image = context.createImageData(wide, tall);
      const [black, white] = limits[picture];
      for (let at = 0; at < wide * tall; at++) {
        for (let colour = 0; colour < 3; colour++) {
          const from = (picture * wide * tall + at) * colours + (colours > 1 ? colour : 0);
          let value = mean[from];
          patterns.forEach((pattern, number) => (value += scores[number] * pattern[from]));
          const hatching = (Math.floor(at / wide) + (at % wide)) % 4 ? 235 : 175;
          const level = Math.round((255 * (value - black)) / (white - black || 1));
          image.data[4 * at + colour] = Number.isNaN(value) ? hatching : level;
        }
        image.data[4 * at + 3] = 255;
      }
      context.putImageData(image, picture * (wide + gap), 0);
    }
  }

  /* Fill the widget of sliders; return the function that sets it to a sample's scores. */
  function fillSliders(all, points) {
    const images = decoded(all);
    const scores = new Float64Array(all.count);
    const canvas = make("canvas", { role: "img", "aria-label": "The mean image, moved along the components" });
    const captions = make("div", { class: "captions" }, ...all.captions.map((text) => make("span", {}, text)));
    const controls = make("div", { class: "controls" });
    const sliders = all.shares.map((share, number) => {
      const id = `slider-${number + 1}`;
      const input = make("input", { id, type: "range", min: -3, max: 3, step: "any", value: 0 });
      const output = make("output", { for: id });
      input.addEventListener("input", () => {
        scores[number] = input.value * all.deviations[number];
        show();
      });
      controls.append(make("label", { for: id }, `component ${number + 1} (${share})`), input, output);
      return { input, output };
    });

    function show() {
      sliders.forEach(({ input, output }, number) => {
        const steps = all.deviations[number] ? scores[number] / all.deviations[number] : 0;
        if (Math.abs(steps) > input.max) [input.min, input.max] = [-Math.ceil(Math.abs(steps)), Math.ceil(Math.abs(steps))];
        input.value = steps;
        output.textContent = Math.abs(steps) < 0.05 ? "0 sd" : `${signed(steps)} sd`;
      });
      drawSum(canvas, all, images, scores);
    }

    function set(values) {
      scores.set(values);
      show();
    }

    const buttons = make("div", { class: "buttons" });
    const mean = make("button", { type: "button" }, "Mean");
    mean.addEventListener("click", () => set(scores.map(() => 0)));
    buttons.append(mean);
    let choose = set;
    const own = make("figure", { hidden: "" });
    if (points) {
      const select = make("select", { "aria-label": "Sample" });
      points.points.forEach(({ name }, number) => select.append(make("option", { value: number }, name)));
      const button = make("button", { type: "button" }, "Scores of this sample");
      const tile = make("canvas", { role: "img", "aria-label": "The sample itself" });
      own.append(tile, make("figcaption", {}, "the sample"));
      choose = (number) => {
        select.value = number;
        own.hidden = false;
        drawTile(tile, points, number, false);
        set(points.points[number].scores.map((score) => score ?? 0));
      };
      button.addEventListener("click", () => choose(Number(select.value)));
      mean.addEventListener("click", () => (own.hidden = true));
      buttons.append(select, button);
    }
    controls.append(buttons, own);
    const text =
      "Move the sliders: the image is the mean and so many standard deviations of each component. " +
      "All other components stay at zero.";
    all.widget.append(make("p", {}, text), make("div", { class: "stage" }, canvas, captions), controls);
    all.widget.hidden = false;
    show();
    return choose;
  }

  /* -- points */

  /* Return round numbers between two ends, about five. */
  function ticks(low, high) {
    const raw = (high - low) / 5;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw);
    const found = [];
    for (let number = Math.ceil(low / step); number * step <= high; number++) found.push(number * step);
    return found;
  }

  /* Return the ends of some scores with a margin. */
  function range(values) {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const margin = 0.06 * (high - low) || 1;
    return [low - margin, high + margin];
  }

  /* Fill the scatter: the point next to the pointer, or the one with the focus, shows its sample. */
  function fillPoints(all, choose) {
    const [width, height, right] = [720, 520, 40];
    const narrow = matchMedia("(max-width: 40rem)"); /* texts are larger there, as the scatter is scaled */
    const axes = [0, 1];
    if (!all.points.some(({ scores }) => scores.every((score) => score !== null))) return;

    const scatter = make("div", { class: "scatter" });
    const selects = axes.map((component, at) => {
      const select = make("select", { id: `axis-${at}` }, ...all.axes.map((name, number) => make("option", { value: number }, name)));
      select.value = component;
      select.addEventListener("change", () => {
        axes[at] = Number(select.value);
        draw();
      });
      return make("label", {}, at ? "upwards " : "across ", select);
    });
    const stage = make("div", {});
    stage.innerHTML = `<svg viewBox="0 0 ${width} ${height}" role="group"></svg>`; /* the parser knows its namespace */
    const svg = stage.firstChild;
    svg.setAttribute("aria-label", "Samples by two scores; arrow keys go from one to the next");
    scatter.append(make("div", { class: "axes" }, ...selects), stage);
    function drawn(tag, attributes, ...children) {
      const element = document.createElementNS(svg.namespaceURI, tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      element.append(...children);
      svg.append(element);
      return element;
    }

    const [sample, made] = ["Sample", "Reconstruction"].map((name) => make("canvas", { role: "img", "aria-label": name }));
    const [name, label] = [make("div", { class: "name" }), make("div", {})];
    const images = make("div", { class: "images" }, make("div", {}, "sample", sample), make("div", {}, "reconstruction", made));
    const card = make("div", { class: "card" }, make("div", { "aria-live": "polite" }, name, label), images);
    let [shown, dots, inOrder] = [null, [], []];

    function show(dot) {
      if (shown) shown.circle.setAttribute("tabindex", -1);
      if (shown) shown.circle.classList.remove("shown");
      shown = dot;
      dot.circle.setAttribute("tabindex", 0);
      dot.circle.classList.add("shown");
      svg.append(dot.circle); /* above the others */
      name.textContent = dot.name;
      label.textContent = dot.label && `label ${dot.label}`;
      drawTile(sample, all, dot.at, false);
      drawTile(made, all, dot.at, true);
    }

    /* Draw grid and points along two components; the sample that was shown stays. */
    function draw() {
      const [i, j] = axes;
      const [left, bottom, line] = narrow.matches ? [150, 90, 36] : [105, 60, 20];
      const known = all.points.map((point, at) => ({ ...point, at })).filter(({ scores }) => scores[i] !== null && scores[j] !== null);
      const [x0, x1] = range(known.map(({ scores }) => scores[i]));
      const [y0, y1] = range(known.map(({ scores }) => scores[j]));
      const across = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right);
      const upwards = (y) => height - bottom - ((y - y0) / (y1 - y0)) * (height - bottom - 10);
      svg.replaceChildren();
      for (const x of ticks(x0, x1)) {
        drawn("path", { d: `M${across(x)},10V${height - bottom}` });
        drawn("text", { x: across(x), y: height - bottom + line + 2, "text-anchor": "middle" }, `${+x.toPrecision(6)}`);
      }
      for (const y of ticks(y0, y1)) {
        drawn("path", { d: `M${left},${upwards(y)}H${width - right}` });
        drawn("text", { x: left - 6, y: upwards(y) + 5, "text-anchor": "end" }, `${+y.toPrecision(6)}`);
      }
      drawn("text", { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, all.axes[i]);
      const turned = `translate(${line},${(height - bottom) / 2})rotate(-90)`;
      drawn("text", { transform: turned, "text-anchor": "middle" }, all.axes[j]);
      dots = known.map((point) => {
        const [x, y] = [across(point.scores[i]), upwards(point.scores[j])];
        const words = { role: "img", tabindex: -1, "aria-label": point.label ? `${point.name}, label ${point.label}` : point.name };
        const circle = drawn("circle", { cx: x, cy: y, r: known.length > 150 ? 5 : 7, ...words });
        const group = all.groups[point.group];
        if (group) circle.style.fill = group.colour;
        const dot = { ...point, x, y, circle };
        circle.addEventListener("focus", () => shown === dot || show(dot));
        return dot;
      });
      inOrder = [...dots].sort((a, b) => a.x - b.x);
      const again = shown && dots.find(({ at }) => at === shown.at);
      shown = null;
      show(again || inOrder[Math.floor(inOrder.length / 2)]);
    }

    function nearest(event) {
      const box = svg.getBoundingClientRect();
      const [x, y] = [((event.clientX - box.left) * width) / box.width, ((event.clientY - box.top) * height) / box.height];
      const far = (dot) => (dot.x - x) ** 2 + (dot.y - y) ** 2;
      return dots.reduce((best, dot) => (far(dot) < far(best) ? dot : best));
    }
    svg.addEventListener("pointermove", (event) => show(nearest(event)));
    svg.addEventListener("click", (event) => {
      show(nearest(event));
      if (choose) choose(shown.at);
    });
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (event.key === "Enter" && choose) choose(shown.at);
      if (!step) return;
      event.preventDefault();
      const next = inOrder[(inOrder.indexOf(shown) + step + inOrder.length) % inOrder.length];
      show(next);
      next.circle.focus();
    });

    const text =
      "Point at a sample, or step through them by the arrow keys, to see it and what the components make of it." +
      (choose ? " A click puts its scores on the sliders." : "");
    const groups = all.groups.map(({ name: own, colour }) => {
      const item = make("li", {}, own);
      item.style.setProperty("--own", colour);
      return item;
    });
    scatter.append(make("ul", { class: "groups" }, ...groups));
    all.widget.append(make("p", {}, text), scatter, card);
    all.widget.hidden = false;
    narrow.addEventListener("change", draw);
    draw();
    /* The picture of the first two scores stays for print, and where scripts do not run. */
    all.widget.closest("section").querySelector("figure.still")?.classList.add("replaced");
  }

  /* -- pictures */

  /* Enlarged pixels have hard edges; a picture that is reduced is averaged, or its texts would be ragged. */
  const enlarging = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const pixels = target.clientWidth * devicePixelRatio;
      target.classList.toggle("enlarged", pixels >= target.naturalWidth);
    }
  });

  function openPictures() {
    const dialog = make("dialog", { "aria-label": "Picture" });
    dialog.addEventListener("click", () => dialog.close());
    document.body.append(dialog);
    for (const picture of document.querySelectorAll("figure .picture img")) {
      const frame = picture.parentElement;
      const open = () => {
        const copy = make("img", { src: picture.src, alt: picture.alt, class: frame.classList.contains("chart") ? "chart" : "" });
        copy.style.width = `max(${picture.naturalWidth}px, 94vw)`;
        dialog.replaceChildren(copy);
        dialog.showModal();
      };
      /* On dark pages texts and axes are inverted, and images lie above them as they are. */
      for (const [left, top, right, bottom] of JSON.parse(picture.dataset.boxes)) {
        const over = make("img", { src: picture.src, alt: "", class: "over", "aria-hidden": "true" });
        over.style.clipPath = `inset(${top}% ${100 - right}% ${100 - bottom}% ${left}%)`;
        frame.append(over);
        enlarging.observe(over);
        frame.classList.add("layered");
      }
      if (!frame.classList.contains("chart")) enlarging.observe(picture);
      picture.classList.add("opens");
      picture.setAttribute("tabindex", 0);
      picture.addEventListener("click", open);
      picture.addEventListener("keydown", (event) => event.key === "Enter" && open());
    }
  }

  /* Fold the contents where they are not at the side. */
  function foldContents() {
    const contents = document.querySelector("nav details");
    const wide = matchMedia("(min-width: 75rem)");
    const fold = () => (contents.open = wide.matches);
    wide.addEventListener("change", fold);
    fold();
  }

  async function start() {
    foldContents();
    openPictures();
    const [sliders, points] = [await read("sliders"), await read("points")];
    const choose = sliders && fillSliders(sliders, points);
    if (points) fillPoints(points, choose);
  }
  start();
})();
