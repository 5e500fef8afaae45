"""The rendering kit: styled text, tables, HTML pages, records as plain JSON."""
