'use strict';
// Pages work without this. Up and down move between the rows of a table.
document.addEventListener('keydown', (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const row = event.target.closest('tbody tr');
  if (!step || !row) return;
  const rows = [...row.parentElement.rows];
  const next = rows[rows.indexOf(row) + step]?.querySelector('a');
  if (next) {
    next.focus();
    event.preventDefault();
  }
});

// The cloud: the host under the pointer, and moves with the arrow keys.
const under = document.getElementById('under');
for (const link of document.querySelectorAll('.cells')) {
  const [size, columns, hosts] = ['size', 'columns', 'hosts'].map(
    (name) => Number(link.dataset[name]),
  );
  const marker = document.createElement('span');
  marker.className = 'marker';
  let place = -1;
  let timer;
  const point = () => [(place % columns) * size, Math.floor(place / columns) * size];
  const look = (next) => {
    if (next === place || next < 0 || next >= hosts) return;
    place = next;
    const [left, top, side] = [...point(), size].map((number) => `${number}px`);
    Object.assign(marker.style, { left, top, width: side, height: side });
    link.append(marker);
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const answer = await fetch(`${link.pathname}?${point()},name`);
      if (!answer.ok || place !== next) return;
      under.textContent = await answer.text();
      under.hidden = false;
    }, 60);
  };
  link.addEventListener('pointermove', (event) => {
    const box = link.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / size);
    const line = Math.floor((event.clientY - box.top) / size);
    if (column < columns) look(line * columns + column);
  });
  link.addEventListener('keydown', (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (!step) return;
    look(place < 0 ? 0 : place + step);
    event.preventDefault();
  });
  link.addEventListener('click', (event) => {
    // A click by key has no point of its own.
    if (event.detail || place < 0) return;
    event.preventDefault();
    location.assign(`${link.pathname}?${point()}`);
  });
}

// A reload each ten seconds, where it is wanted, that keeps the place.
const again = document.createElement('input');
again.type = 'checkbox';
again.checked = sessionStorage.getItem('again') === 'yes';
again.addEventListener('change', () => {
  sessionStorage.setItem('again', again.checked ? 'yes' : 'no');
});
const label = document.createElement('label');
label.append(again, ' Reload every 10 s');
document.querySelector('footer').append(' ', label);
const able = () => [...document.querySelectorAll('a, input, select, button')];
const kept = JSON.parse(sessionStorage.getItem('place') || '[]');
sessionStorage.removeItem('place');
if (kept[0] === location.href) {
  able()[kept[1]]?.focus({ preventScroll: true });
  scrollTo(kept[2], kept[3]);
}
setInterval(() => {
  if (!again.checked) return;
  const place = [location.href, able().indexOf(document.activeElement), scrollX, scrollY];
  sessionStorage.setItem('place', JSON.stringify(place));
  location.reload();
}, 10000);
