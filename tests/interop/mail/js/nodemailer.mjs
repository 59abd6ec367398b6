// nodemailer submits a mail with an attachment and names in other alphabets.

import nodemailer from "nodemailer";

const transport = nodemailer.createTransport({
  host: "localhost",
  port: Number(process.env.PORT),
  secure: true,
  auth: { user: "anna@example.org", pass: process.env.PASSWORD },
});
const sent = await transport.sendMail({
  from: "Άννα <anna@example.org>",
  to: "carl@elsewhere.example",
  subject: "By nodemailer",
  text: "Hello!\n.\n..\n",
  attachments: [{ filename: "ελληνικά.txt", content: "Γειά\n" }],
});
if (sent.rejected.length > 0) throw new Error(`rejected: ${sent.rejected}`);
transport.close();
