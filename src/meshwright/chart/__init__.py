"""What is drawn on a clock and how it is shown: charts as text, in colour, as HTML, as traces."""
