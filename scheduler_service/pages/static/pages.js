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
