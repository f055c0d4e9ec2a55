"""Pages for people: one finished value in, one self-contained HTML file out."""
