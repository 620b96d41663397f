"""JSON text: read strictly, and edited without touching its other characters."""
