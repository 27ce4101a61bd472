"""Small projects on disk, for checks as a whole."""

DOCKERFILE = """\
FROM python:3.12-slim
WORKDIR /app
COPY . .
CMD ["uvicorn", "app:app", "--host", "0.0.0.0"]
"""

COMPOSE = """\
services:
  api:
    build: .
    ports: ["8000:8000"]
"""

MEMORY = """\
from fastapi import FastAPI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

builder = StateGraph(MessagesState)
builder.add_node("answer", lambda state: state)
builder.add_edge(START, "answer")
builder.add_edge("answer", END)
graph = builder.compile(checkpointer=InMemorySaver())
app = FastAPI()


@app.post("/{thread}")
def chat(thread: str, text: str):
    return graph.invoke({"messages": [text]}, {"configurable": {"thread_id": thread}})
"""


def project(folder, **files):
    """Write files below a folder, `__` in names for `/` and `_dot_` for `.`; return it."""
    given = {"Dockerfile": DOCKERFILE, "compose_dot_yaml": COMPOSE, "app_dot_py": MEMORY, **files}
    for name, text in given.items():
        if text is None:
            continue
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder
