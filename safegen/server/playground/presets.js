// What the page offers to try: kinds of output types, and examples of each.

const KINDS = {
  json_schema: { label: "JSON Schema", help: "The answer is valid against this schema, keyword by keyword (draft 2020-12)." },
  regex: { label: "Regex", help: "The whole answer matches this pattern (ECMA-262)." },
  choice: { label: "Choice", help: "The answer is one of these lines, verbatim." },
  grammar: { label: "Grammar", help: "The whole answer derives from the rule “start” of this grammar, in Lark syntax." },
  tools: { label: "Tools", help: "Text, or calls whose arguments are valid against the schemas; as OpenAI’s “tools”." },
  text: { label: "Free text", help: "No output type: the model writes as it likes, under the server’s guards." },
};

const json = (value) => JSON.stringify(value, null, 2);

const PRESETS = [
  {
    name: "A person, from a sentence", kind: "json_schema",
    wrong: '{"name":"Maria Lopez","age":340,"job":"marine biologist","city":"Lisbon"}',
    prompt: "Extract the person: Maria Lopez, 34, a marine biologist, moved from Porto to Lisbon in 2019.",
    source: json({
      type: "object",
      properties: {
        name: { type: "string", maxLength: 40 },
        age: { type: "integer", minimum: 0, maximum: 120 },
        job: { type: "string", maxLength: 40 },
        city: { enum: ["Lisbon", "Porto", "Braga", "other"] },
      },
      required: ["name", "age", "job", "city"],
      additionalProperties: false,
    }),
  },
  {
    name: "A support ticket, nested", kind: "json_schema",
    wrong: '{"summary":"Crash on opening invoices","severity":"urgent"}',
    prompt: "Ticket: “Since Tuesday's update the app crashes when I open invoices. I'm losing customers over this! – Jonas, jonas@example.com”",
    source: json({
      type: "object",
      properties: {
        summary: { type: "string", minLength: 10, maxLength: 80 },
        severity: { enum: ["low", "medium", "high", "critical"] },
        product_area: { enum: ["login", "billing", "invoices", "other"] },
        customer: {
          type: "object",
          properties: { name: { type: "string", maxLength: 30 }, email: { type: "string", format: "email" } },
          required: ["name", "email"],
          additionalProperties: false,
        },
        tags: { type: "array", items: { type: "string", pattern: "^[a-z-]{3,16}$" }, minItems: 1, maxItems: 3 },
      },
      required: ["summary", "severity", "product_area", "customer", "tags"],
      additionalProperties: false,
    }),
  },
  {
    name: "A schema that is refused", kind: "json_schema",
    wrong: '{"title":"Nothing fits","rating":6}',
    prompt: "The page shows where in the schema the contradiction is.",
    source: json({
      type: "object",
      properties: {
        title: { type: "string" },
        rating: { type: "integer", minimum: 8, maximum: 5 },
      },
      required: ["title", "rating"],
      additionalProperties: false,
    }),
  },
  {
    name: "A date and a time", kind: "regex",
    wrong: '2026-13-03T16:30',
    prompt: "When does the meeting on the third of May 2026 at half past four in the afternoon begin?",
    source: "20\\d{2}-(0[1-9]|1[0-2])-(0[1-9]|[12]\\d|3[01])T([01]\\d|2[0-3]):[0-5]\\d",
  },
  {
    name: "Sentiment", kind: "choice",
    wrong: 'neutral',
    prompt: "The room was spotless, but nobody answered the phone for two days. Is the review positive, negative or mixed?",
    source: "positive\nnegative\nmixed",
  },
  {
    name: "Arithmetic", kind: "grammar",
    wrong: '(2 + 4 + 06) * 2',
    prompt: "Write the sum of the first five even numbers, doubled, as an expression.",
    source: [
      "start: sum",
      "sum: product ((\" + \" | \" - \") product)~0..6",
      "product: atom ((\" * \" | \" / \") atom)~0..3",
      "atom: NUMBER | \"(\" sum \")\"",
      "NUMBER: /[1-9][0-9]{0,3}/",
      "",
    ].join("\n"),
  },
  {
    name: "SQL over two tables", kind: "grammar",
    wrong: "SELECT name FROM customers WHERE city LIKE 'L%';",
    prompt: "Names of the customers from Lisbon, newest first.",
    source: [
      "start: \"SELECT \" columns \" FROM \" table (\" WHERE \" test)? (\" ORDER BY \" column (\" DESC\")?)? \";\"",
      "columns: \"*\" | column (\", \" column)~0..3",
      "column: \"name\" | \"city\" | \"created_at\" | \"total\"",
      "table: \"customers\" | \"orders\"",
      "test: column (\" = \" | \" > \" | \" < \") value",
      "value: STRING | INT",
      "STRING: /'[A-Za-z ]{1,20}'/",
      "INT: /[0-9]{1,6}/",
      "",
    ].join("\n"),
  },
  {
    name: "Weather and calendar", kind: "tools",
    wrong: '<tool_call>\n{"name":"get_weather","arguments":{"city":"Lisbon","day":"yesterday"}}\n</tool_call>',
    prompt: "What will the weather be like in Lisbon tomorrow?",
    source: json([
      {
        type: "function",
        function: {
          name: "get_weather",
          description: "The forecast of a city",
          parameters: {
            type: "object",
            properties: {
              city: { type: "string", maxLength: 30 },
              day: { enum: ["today", "tomorrow"] },
              unit: { enum: ["celsius", "fahrenheit"] },
            },
            required: ["city", "day"],
            additionalProperties: false,
          },
        },
      },
      {
        type: "function",
        function: {
          name: "add_event",
          description: "Put an event into the calendar",
          parameters: {
            type: "object",
            properties: { title: { type: "string", maxLength: 40 }, hour: { type: "integer", minimum: 0, maximum: 23 } },
            required: ["title", "hour"],
            additionalProperties: false,
          },
        },
      },
    ]),
  },
  { name: "No type at all", kind: "text", prompt: "In two sentences: why is the sky blue?", source: "", wrong: 'Without a type every text is accepted.' },
];
