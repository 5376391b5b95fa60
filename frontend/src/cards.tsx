// Figures at a first glance.
export function Cards({ cards }: { cards: [title: string, value: string, more: string][] }) {
  return (
    <div class="cards">
      {cards.map(([title, value, more]) => (
        <div class="card">
          <div class="quiet">{title}</div>
          <div class="figure">{value}</div>
          <div class="quiet">{more}</div>
        </div>
      ))}
    </div>
  );
}
