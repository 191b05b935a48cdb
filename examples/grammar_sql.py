"""Ask for a SQL query that can only be one SELECT of a known form, then run it."""

import sqlite3

from safegen import LLM, Grammar

# The tables and columns are part of the grammar, so no other name can come out.
QUERY = Grammar(
    """
    start: "SELECT " what " FROM orders" [" WHERE " test [" AND " test]] [" ORDER BY " COLUMN [" DESC"]]
    what: "*" | COLUMN (", " COLUMN)~0..2 | "COUNT(*)"
    test: "customer = " NAME | ("price" | "quantity") " " COMPARISON " " NUMBER

    COLUMN: "customer" | "price" | "quantity"
    COMPARISON: "<" | ">" | "="
    NAME: "'" /[A-Z][a-z]{1,11}/ "'"
    NUMBER: /[1-9][0-9]{0,3}/
    """
)
QUESTIONS = [
    "Show all orders of the customer Maria.",
    "Which customers ordered for a price over 100? Highest price first.",
    "How many orders have a quantity of more than 3?",
]


def main() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE orders (customer TEXT, price INTEGER, quantity INTEGER)")
    database.executemany(
        "INSERT INTO orders VALUES (?, ?, ?)", [("Maria", 120, 1), ("Ivan", 30, 5), ("Maria", 15, 4), ("Chen", 400, 2)]
    )
    ran = 0
    with LLM() as llm:
        for question in QUESTIONS:
            prompt = f"Table orders(customer, price, quantity). Write one SQL query. {question}"
            query = llm.generate(prompt, QUERY, max_tokens=64, temperature=0.0).unwrap()
            print(f"{question}\n  {query}\n  {database.execute(query).fetchall()}")
            ran += 1
    print(f"{ran} of {len(QUESTIONS)} queries ran")


if __name__ == "__main__":
    main()
