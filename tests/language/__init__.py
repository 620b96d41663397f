"""Whether the project's texts keep the language rules of docs/glossary.md."""
