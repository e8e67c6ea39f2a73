// The programs of npm's registry, each in the forms that it has: node write.mjs FOLDER TEXT
// TEXT is a JSON file with the planted text; what was planted is in `planted_node.json`.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const [folder, source] = process.argv.slice(2);
const { heading, paragraph, soft, rows, html } = JSON.parse(readFileSync(source, "utf8"));
const files = {};
const failed = {};

function save(name, data) {
  writeFileSync(join(folder, name), Buffer.from(data));
}

async function producer(name, write) {
  try {
    for (const [file, features] of Object.entries(await write())) files[file] = [name, features];
  } catch (error) {
    failed[name] = String(error);
  }
}

await producer("docx", async () => {
  const d = await import("docx");
  const cells = (row) => row.map((text) => new d.TableCell({ children: [new d.Paragraph(text)] }));
  const item = (text) => new d.Paragraph({ text, numbering: { reference: "n", level: 0 } });
  const document = new d.Document({
    numbering: {
      config: [{ reference: "n", levels: [{ level: 0, format: "decimal", text: "%1.", start: 1 }] }],
    },
    footnotes: { 1: { children: [new d.Paragraph("Signed twice.")] } },
    sections: [
      {
        headers: { default: new d.Header({ children: [new d.Paragraph("Contract K-4712")] }) },
        children: [
          new d.Paragraph({ text: heading, heading: d.HeadingLevel.HEADING_1 }),
          new d.Paragraph(paragraph),
          new d.Paragraph({
            children: [
              new d.TextRun("At most 10"),
              new d.TextRun({ text: "6", superScript: true }),
              new d.TextRun(` units. Die ${soft} endet. This is our contract`),
              new d.FootnoteReferenceRun(1),
              new d.TextRun({ text: "Go down to 80.", vanish: true }),
            ],
          }),
          item("Warranty"),
          item("Liability"),
          new d.Paragraph("Text between."),
          item("Renewal"),
          new d.Paragraph({ text: "Insurance", bullet: { level: 0 } }),
          new d.Table({ rows: rows.map((row) => new d.TableRow({ children: cells(row) })) }),
          new d.Paragraph("Signed in Lisbon."),
          new d.Paragraph({ children: [new d.CheckBox({ checked: true }), new d.TextRun(" insured")] }),
          new d.Paragraph({
            children: [
              new d.TextRun("Half is "),
              new d.Math({
                children: [
                  new d.MathFraction({
                    numerator: [new d.MathRun("a+b")],
                    denominator: [new d.MathRun("2")],
                  }),
                ],
              }),
            ],
          }),
        ],
      },
    ],
  });
  save("docx_npm.docx", await d.Packer.toBuffer(document));
  return {
    "docx_npm.docx": [
      "paragraph", "heading", "raised", "soft hyphens", "numbers", "continued numbers", "bullets",
      "table", "after a table", "hidden", "headers", "ticks", "formulas", "notes",
    ],
  };
});

await producer("html-to-docx", async () => {
  const { default: convert } = await import("html-to-docx");
  save("html_to_docx.docx", await convert(html));
  return { "html_to_docx.docx": ["paragraph", "heading", "soft hyphens", "numbers", "bullets", "table"] };
});

await producer("pptxgenjs", async () => {
  const { default: PptxGenJS } = await import("pptxgenjs");
  const Talk = PptxGenJS.default ?? PptxGenJS;
  const talk = new Talk();
  const slide = talk.addSlide();
  slide.addText(paragraph, { x: 1, y: 1, w: 8, h: 1 });
  slide.addText(
    [{ text: "At most 10" }, { text: "6", options: { superscript: true } }, { text: " units." }],
    { x: 1, y: 2, w: 8, h: 1 },
  );
  slide.addTable(rows.map((row) => row.map((text) => ({ text }))), { x: 1, y: 3, w: 8 });
  slide.addNotes("Say hello.");
  const data = [{ name: "Sold", labels: ["Q1", "Q3"], values: [10, 30] }];
  slide.addChart(talk.ChartType.bar, data, { x: 1, y: 4, w: 5, h: 3 });
  save("pptxgenjs.pptx", await talk.write({ outputType: "nodebuffer" }));
  return { "pptxgenjs.pptx": ["paragraph", "raised", "table", "speaker notes", "charts"] };
});

await producer("exceljs", async () => {
  const { default: ExcelJS } = await import("exceljs");
  const book = new ExcelJS.Workbook();
  const sheet = book.addWorksheet("Costs");
  for (const row of rows) sheet.addRow(row.map((text) => (/^\d+$/.test(text) ? Number(text) : text)));
  sheet.getCell("B5").value = { formula: "SUM(B2:B3)" };
  sheet.getCell("B2").note = "Too cheap?";
  sheet.addRow(["secret"]).hidden = true;
  save("exceljs.xlsx", await book.xlsx.writeBuffer());
  return { "exceljs.xlsx": ["values", "empty cells", "formulas of sheets", "comments", "hidden rows"] };
});

await producer("SheetJS", async () => {
  const XLSX = await import("xlsx");
  const { default: whole } = XLSX;
  const x = whole ?? XLSX;
  const sheet = x.utils.aoa_to_sheet(
    rows.map((row) => row.map((text) => (/^\d+$/.test(text) ? Number(text) : text))),
  );
  sheet["C2"] = { t: "n", v: 1.5, z: "0%" };
  sheet["B5"] = { t: "n", f: "SUM(B2:B3)" };
  sheet["!ref"] = "A1:C5";
  const book = x.utils.book_new();
  x.utils.book_append_sheet(book, sheet, "Costs");
  for (const kind of ["xlsx", "ods", "html", "csv"]) {
    save(`sheetjs.${kind}`, x.write(book, { type: "buffer", bookType: kind }));
  }
  return {
    "sheetjs.xlsx": ["values", "empty cells", "percent", "formulas of sheets"],
    "sheetjs.ods": ["values", "empty cells"],
    "sheetjs.html": ["values", "empty cells", "percent"],
  };
});

await producer("pdf-lib", async () => {
  const { PDFDocument, StandardFonts } = await import("pdf-lib");
  const document = await PDFDocument.create();
  const font = await document.embedFont(StandardFonts.Helvetica);
  const page = document.addPage();
  page.drawText(paragraph, { x: 50, y: 700, size: 12, font });
  page.drawText("At most 10", { x: 50, y: 650, size: 12, font });
  const x = 50 + font.widthOfTextAtSize("At most 10", 12);
  page.drawText("6", { x, y: 655, size: 7, font });
  page.drawText(" units.", { x: x + font.widthOfTextAtSize("6", 7), y: 650, size: 12, font });
  save("pdf_lib.pdf", await document.save());
  return { "pdf_lib.pdf": ["paragraph", "raised"] };
});

await producer("jsPDF", async () => {
  const { jsPDF } = await import("jspdf");
  const document = new jsPDF();
  document.text(paragraph, 20, 20);
  save("jspdf.pdf", Buffer.from(document.output("arraybuffer")));
  return { "jspdf.pdf": ["paragraph"] };
});

await producer("epub-gen-memory", async () => {
  const { default: epub } = await import("epub-gen-memory");
  const write = epub.default ?? epub;
  const body = html.slice(html.indexOf("<body>") + 6, html.indexOf("</body>"));
  save("epub_gen.epub", await write({ title: "Supply contract" }, [{ title: "One", content: body }]));
  return { "epub_gen.epub": ["paragraph", "heading", "raised", "soft hyphens", "numbers", "bullets", "table"] };
});

writeFileSync(join(folder, "planted_node.json"), JSON.stringify({ files, failed }, null, 1));
